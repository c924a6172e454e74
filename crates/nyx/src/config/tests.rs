//! Whole configurations: what is accepted and what it becomes, what is refused and how it is said.

use super::knob::KNOBS;
use super::layers::{Origin, Override};
use super::overrides::Overrides;
use super::*;

fn load(text: &str) -> Result<Loaded, Vec<String>> {
    load_with(text, &[])
}

fn load_with(text: &str, given: &[(&str, &str)]) -> Result<Loaded, Vec<String>> {
    let overrides = given.iter().map(|(from, text)| {
        let is = |k: &&knob::Knob| k.env() == *from || format!("--{}", k.flag()) == *from;
        let origin = match from.starts_with("--") {
            true => Origin::Flag(from.to_string()),
            false => Origin::Env(from.to_string()),
        };
        let knob = KNOBS.iter().find(is).expect(from);
        Override {
            knob,
            texts: vec![text.to_string()],
            origin,
        }
    });
    let overrides = Overrides(overrides.collect());
    super::load::load(text, &overrides)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// The only problem of a configuration that has exactly one.
fn refused(text: &str) -> String {
    let problems = load(text).expect_err(text);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.into_iter().next().expect("one")
}

const TWO: &str = "
[[device]]
name = \"d\"
kind = \"anon\"
size = \"256MiB\"
[[tenant]]
name = \"a\"
key_prefix = \"a:\"
[[tenant]]
name = \"b\"
size = \"64MiB\"
";

#[test]
fn an_empty_file_is_one_tenant_on_one_file() {
    let config = load("").expect("defaults").config;
    assert_eq!(config.devices.len(), 1);
    assert_eq!(
        config.devices[0].medium,
        Medium::File("nyx-data/main.media".into())
    );
    assert_eq!(
        config.devices[0].profile,
        PathBuf::from("nyx-data/main.profile.toml")
    );
    assert_eq!(config.tenants.len(), 1);
    assert_eq!(config.tenants[0].size, Bytes::gib(1));
    assert!(config.server.workers >= 1);
    let entry = Entry::Open {
        default: Some(0),
        prefixes: vec![],
    };
    let listen = "127.0.0.1:11211".parse().expect("address");
    assert_eq!(config.doors, [Door { listen, entry }]);
}

#[test]
fn tenants_without_a_size_share_what_the_device_has_left() {
    let config = load(TWO).expect("two tenants").config;
    assert_eq!(config.tenants[0].size, Bytes::mib(192));
    assert_eq!(config.tenants[1].size, Bytes::mib(64));
    let entry = Entry::Open {
        default: Some(1),
        prefixes: vec![(b"a:".to_vec(), 0)],
    };
    assert_eq!(config.doors[0].entry, entry);
}

#[test]
fn a_flag_hides_a_variable_hides_the_file_hides_the_default() {
    let text = "[policy]\ntick_ms = 20\n";
    let tick = |given: &[(&str, &str)]| {
        let loaded = load_with(text, given).expect("sound");
        let origin = loaded
            .settings
            .policy
            .get("tick_ms")
            .expect("set")
            .origin
            .to_string();
        (loaded.config.policy.tick_ms, origin)
    };
    assert_eq!(tick(&[]), (20, "2:11".into()));
    assert_eq!(
        tick(&[("NYX_POLICY_TICK_MS", "30")]),
        (30, "NYX_POLICY_TICK_MS".into())
    );
    let both = [("--policy-tick-ms", "40"), ("NYX_POLICY_TICK_MS", "30")];
    assert_eq!(tick(&both), (40, "--policy-tick-ms".into()));
    assert_eq!(load("").expect("sound").config.policy.tick_ms, 10);
}

#[test]
fn a_flag_for_a_tenant_needs_exactly_one_tenant() {
    let config = load_with("", &[("--tenant-size", "64MiB")])
        .expect("one")
        .config;
    assert_eq!(config.tenants[0].size, Bytes::mib(64));
    let problems = load_with(TWO, &[("--tenant-size", "64MiB")]).expect_err("two");
    assert!(problems[0].starts_with("--tenant-size: "), "{problems:?}");
    assert!(problems[0].contains("the file has 2"), "{problems:?}");
}

#[test]
fn sizes_beyond_the_device_are_refused_with_both_sizes() {
    let problem = refused("[[device]]\nsize = \"64MiB\"\n[[tenant]]\nsize = \"65MiB\"\n");
    assert!(problem.starts_with("4:8: tenant.size: "), "{problem}");
    assert!(
        problem.contains("65 MiB") && problem.contains("64 MiB"),
        "{problem}"
    );
}

#[test]
fn a_tenant_must_hold_some_segments_and_a_segment_an_item() {
    let problem = refused("[[tenant]]\nsize = \"8MiB\"\nsegment_bytes = \"8MiB\"\n");
    assert!(
        problem.starts_with("2:8: ") && problem.contains("segment"),
        "{problem}"
    );
    let problem = refused("[[tenant]]\nitem_len_max = \"2MiB\"\n");
    assert!(
        problem.starts_with("2:16: ") && problem.contains("segment_bytes"),
        "{problem}"
    );
}

#[test]
fn names_prefixes_and_doors_are_unique() {
    let twice = "[[tenant]]\nname=\"a\"\n[[tenant]]\nname=\"a\"\nkey_prefix=\"x\"\n";
    assert!(refused(twice).contains("\"a\" is there twice"));
    let prefixes = "[[tenant]]\nname=\"a\"\nkey_prefix=\"ab\"\n\
                    [[tenant]]\nname=\"b\"\nkey_prefix=\"a\"\n";
    assert!(refused(prefixes).contains("match the same keys"));
    let doors = "[[tenant]]\nname=\"a\"\n[[tenant]]\nname=\"b\"\n";
    assert!(refused(doors).contains("already leads to tenant \"a\""));
    let own = "[[tenant]]\nname=\"a\"\nlisten=[1]\n[[tenant]]\nname=\"b\"\nlisten=[1]\n";
    assert!(refused(own).contains("127.0.0.1:1 already leads"));
    let wild = "[[tenant]]\nname=\"a\"\nlisten=[1]\n\
                [[tenant]]\nname=\"b\"\nlisten=[\"0.0.0.0:1\"]\n";
    assert!(refused(wild).contains("cannot both be bound"));
}

#[test]
fn fresh_ports_are_never_shared() {
    let text = "[[tenant]]\nname=\"a\"\nlisten=[0]\n[[tenant]]\nname=\"b\"\nlisten=[0]\n";
    assert_eq!(load(text).expect("two doors").config.doors.len(), 2);
}

#[test]
fn devices_are_named_and_kept_apart() {
    let unknown = "[[device]]\nname=\"fast\"\n[[tenant]]\ndevice=\"fats\"\n";
    assert!(refused(unknown).contains("did you mean \"fast\""));
    let unsaid = "[[device]]\nname=\"x\"\n[[device]]\nname=\"y\"\n[[tenant]]\n";
    assert!(refused(unsaid).contains("choose one of x, y"));
    let same = "[[device]]\nname=\"x\"\npath=\"p\"\n[[device]]\nname=\"y\"\npath=\"p\"\n\
                [[tenant]]\ndevice=\"x\"\n";
    assert!(refused(same).contains("medium of device \"x\" too"));
    assert!(refused("[[device]]\nkind=\"dax\"\n").contains("needs one"));
    let model = refused("[[device]]\nmodel=\"optaine\"\n");
    assert!(
        model.starts_with("2:7: device.model") && model.contains("optaine"),
        "{model}"
    );
    assert!(refused("[[device]]\nkind=\"anon\"\npath=\"p\"\n").contains("no path"));
}

fn password_file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), text).expect("written");
    file
}

#[test]
fn a_door_with_users_asks_everyone_for_a_login() {
    let (a, b) = (
        password_file("ann:1\n\nbob:x:y\n"),
        password_file("cy:3\r\n"),
    );
    let tenant = |name: &str, file: &tempfile::NamedTempFile| {
        format!("[[tenant]]\nname={name:?}\nusers={:?}\n", file.path())
    };
    let config = load(&(tenant("a", &a) + &tenant("b", &b)))
        .expect("two logins")
        .config;
    assert_eq!(
        config.doors[0].entry,
        Entry::Login {
            tenants: vec![0, 1]
        }
    );
    assert_eq!(config.tenants[0].users[1].password, b"x:y");
    assert_eq!(config.tenants[1].users[0].password, b"3");
    let same_user = refused(&(tenant("a", &a) + &tenant("b", &a)));
    assert!(
        same_user.contains("user \"ann\" is tenant \"a\"'s too"),
        "{same_user}"
    );
    let open_too = refused(&(tenant("a", &a) + "[[tenant]]\nname=\"b\"\n"));
    assert!(open_too.contains("asks for a login"), "{open_too}");
    let both = refused(&(tenant("a", &a) + "key_prefix=\"a\"\n"));
    assert!(both.contains("exclude each other"), "{both}");
}

#[test]
fn broken_password_files_are_told_without_their_passwords() {
    for (text, told) in [
        ("", "nobody could log in"),
        ("nocolon\n", "line 1"),
        (":x\n", "line 1"),
    ] {
        let file = password_file(text);
        let problem = refused(&format!("[[tenant]]\nusers={:?}\n", file.path()));
        assert!(problem.contains(told), "{problem}");
        assert!(!problem.contains("nocolon"), "{problem}");
    }
    assert!(
        refused("[[tenant]]\nusers=\"/nonexistent/there\"\n")
            .contains("cannot read /nonexistent/there")
    );
    let user = User {
        name: b"ann".to_vec(),
        password: b"secret".to_vec(),
    };
    assert_eq!(format!("{user:?}"), "User(ann)");
}

#[test]
fn oversubscription_and_idle_limits_are_told_not_refused() {
    let text =
        TWO.to_string() + "limit=\"60%\"\n[[tenant]]\nname=\"c\"\nlisten=[1]\nlimit=\"50%\"\n";
    let loaded = load(&text).expect("allowed");
    assert_eq!(
        loaded.config.tenants[1].terms.limit,
        Some(Limit::Share(0.6))
    );
    assert!(
        loaded.warnings[0].contains("add up to 110 %"),
        "{:?}",
        loaded.warnings
    );
    let loaded = load(&(text + "[policy]\nkind=\"none\"\n")).expect("allowed");
    assert!(
        loaded
            .warnings
            .iter()
            .any(|w| w.contains("the policy over it is none"))
    );
}

#[test]
fn a_promise_needs_the_policy_that_keeps_it() {
    let text = TWO.to_string() + "target=\"p99 2ms\"\n";
    let loaded = load(&text).expect("allowed");
    let promised = Some(Target::QuantileNs(0.99, 2_000_000));
    assert_eq!(loaded.config.tenants[1].terms.target, promised);
    let warned = |loaded: &Loaded, of: &str| loaded.warnings.iter().any(|w| w.contains(of));
    assert!(warned(&loaded, "the policy over it is limit, not qos"));
    let loaded = load(&(text + "[policy]\nkind=\"qos\"\n")).expect("allowed");
    assert_eq!(loaded.config.policy.kind, PolicyKind::Qos);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let loaded = load("[policy]\nkind=\"qos\"\n").expect("allowed");
    assert!(warned(&loaded, "no tenant under it has a target"));
}

#[test]
fn the_words_of_choices_are_those_of_the_store() {
    for eviction in Eviction::ALL {
        let config = load(&format!("[[tenant]]\neviction=\"{eviction}\"\n"))
            .expect("known")
            .config;
        assert_eq!(config.tenants[0].eviction, eviction);
    }
    for layout in [Layout::Split, Layout::Inline] {
        let config = load(&format!("[[tenant]]\nlayout=\"{layout}\"\n"))
            .expect("known")
            .config;
        assert_eq!(config.tenants[0].layout, layout);
    }
}

#[test]
fn the_sample_is_accepted_and_shows_every_section() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/nyx.toml");
    let text = std::fs::read_to_string(path).expect("config/nyx.toml");
    let loaded = load(&text).expect("sound");
    assert_eq!(loaded.warnings, [] as [&str; 0]);
    for section in knob::Section::ALL {
        assert!(
            text.contains(&format!("[{}]", section.name())),
            "{section:?} is not shown"
        );
    }
    assert!(loaded.config.tenants.len() >= 3);
}

const GROUPED: &str = "
[policy]
kind = \"share\"
[[group]]
name = \"inner\"
group = \"outer\"
policy = \"slowdown\"
weight = 3
[[group]]
name = \"outer\"
weight = 2.5
limit = \"40%\"
[[tenant]]
name = \"a\"
group = \"inner\"
slowdown_limit = 1.5
listen = [4242]
[[tenant]]
name = \"b\"
min = \"10%\"
burst = \"200ms\"
clients = \"closed\"
";

#[test]
fn groups_stand_after_the_group_that_they_are_in() {
    let config = load(GROUPED).expect("sound").config;
    let names: Vec<&str> = config.groups.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["outer", "inner"]);
    assert_eq!(config.groups[1].group, Some(0));
    assert_eq!(config.groups[1].kind, PolicyKind::Slowdown);
    assert_eq!(
        config.groups[0].kind,
        PolicyKind::Limit,
        "unless it is said"
    );
    assert_eq!(config.groups[0].terms.weight, 2.5);
    assert_eq!(config.groups[0].terms.limit, Some(Limit::Share(0.4)));
    let [a, b] = &config.tenants[..] else {
        panic!("two tenants")
    };
    assert_eq!((a.group, b.group), (Some(1), None));
    assert_eq!(a.terms.slowdown_limit, Some(1.5));
    assert!(a.terms.is_open && !b.terms.is_open);
    assert_eq!(b.terms.burst_ns, 200_000_000);
    assert_eq!(b.terms.min, Some(Limit::Share(0.1)));
}

#[test]
fn groups_that_cannot_be_are_refused_by_name() {
    let with = |from: &str, to: &str| refused(&GROUPED.replacen(from, to, 1));
    let circle = with("name = \"outer\"", "name = \"outer\"\ngroup = \"inner\"");
    assert!(circle.contains("stand in a circle"), "{circle}");
    let typo = with("group = \"outer\"", "group = \"uoter\"");
    assert!(
        typo.contains("there is no group \"uoter\"; did you mean \"outer\"?"),
        "{typo}"
    );
    let twice = with("name = \"b\"", "name = \"inner\"");
    assert!(
        twice.contains("\"inner\" is the name of a tenant too"),
        "{twice}"
    );
    let weight = with("weight = 3", "weight = 0");
    assert!(
        weight.contains("\"0\" is not a number from 0.001 to 1000"),
        "{weight}"
    );
    let burst = with("200ms", "200");
    assert!(burst.contains("is not a time from 0s to 60s"), "{burst}");
}

#[test]
fn a_group_divides_one_device() {
    let two = format!(
        "{GROUPED}group = \"outer\"\ndevice = \"other\"\n[[device]]\n[[device]]\nname = \"other\""
    );
    let two = two.replacen(
        "group = \"inner\"",
        "group = \"inner\"\ndevice = \"main\"",
        1,
    );
    let told = refused(&two);
    assert!(
        told.contains("\"outer\" has tenants on two devices"),
        "{told}"
    );
}

#[test]
fn terms_that_nobody_looks_at_are_told() {
    let warnings = load(&GROUPED.replace("kind = \"share\"", "kind = \"limit\""))
        .expect("sound")
        .warnings;
    let expected =
        "group \"outer\" has a weight, but the policy over it is limit, not share or slowdown";
    assert!(warnings.iter().any(|one| one == expected), "{warnings:?}");
    assert!(
        load(GROUPED)
            .expect("sound")
            .warnings
            .iter()
            .any(|one| one.contains("group \"inner\" has a weight"))
    );
    let qos = load("[policy]\nkind = \"qos\"").expect("sound").warnings;
    assert_eq!(
        qos,
        ["a policy is qos, but no tenant under it has a target"]
    );
}

//! Tests of the readers, on samples made here.

use super::*;
use proptest::prelude::*;
use std::io::Write;

fn read(bytes: &[u8], name: &str) -> (Format, Vec<Request>) {
    let reader = Reader::new(Box::new(io::Cursor::new(bytes.to_vec())), name, None).expect(name);
    let format = reader.format();
    (format, reader.collect::<Result<_, _>>().expect(name))
}

fn fails(bytes: &[u8], format: Option<Format>) -> String {
    match Reader::new(Box::new(io::Cursor::new(bytes.to_vec())), "", format) {
        Err(error) => error.to_string(),
        Ok(reader) => reader
            .filter_map(Result::err)
            .map(|e| e.to_string())
            .next()
            .expect("fails"),
    }
}

fn request(key: u64) -> Request {
    binary::bare(key)
}

#[test]
fn twitter_lines_with_commas_in_the_key() {
    let (format, got) = read(
        b"5,a,b,3,100,7,get,0\n6,k,1,0,7,set,60\n7,k,1,0,9,get,0\n",
        "x",
    );
    assert_eq!(format, Format::Twitter);
    assert_eq!(got[0].key, xxhash_rust::xxh3::xxh3_64(b"a,b"));
    assert_eq!(
        (got[0].key_len, got[0].value_len, got[0].tenant),
        (3, Some(100), 7)
    );
    assert_eq!(got[0].at, Instant(5_000_000_000));
    assert_eq!(
        (got[1].op, got[1].value_len, got[1].ttl_s),
        (Op::Set, Some(0), 60)
    );
    assert_eq!((got[2].value_len, got[1].key), (None, got[2].key));
}

#[test]
fn meta_lines_repeat_and_the_use_case_is_the_tenant() {
    let text = b"op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n\
        6,ab,48,GET,3,87,1,0,366,1\n6,ab,48,SET_LEASE,1,90,0,500,366,1\n";
    let (format, got) = read(text, "x");
    assert_eq!((format, got.len()), (Format::Meta, 4));
    assert_eq!(got[0], got[2]);
    assert_eq!(
        (got[3].op, got[3].ttl_s, got[3].tenant, got[3].key_len),
        (Op::Set, 500, 366, 48)
    );
}

#[test]
fn block_traces() {
    let (format, got) = read(
        b"version,time,op,size,lbn\n1,50,2a,512,42\n1,70,28,4096,43\n",
        "x",
    );
    assert_eq!(format, Format::CloudPhysics);
    let first = Request {
        at: Instant(50_000),
        op: Op::Set,
        value_len: Some(512),
        ..request(42)
    };
    assert_eq!(got[0], first);
    assert_eq!((got[1].op, got[1].key), (Op::Get, 43));

    let (format, got) = read(b"10 3 0 0\n11 1 0 3\n", "x.lis");
    assert_eq!(format, Format::Arc);
    assert_eq!(
        got.iter().map(|r| r.key).collect::<Vec<_>>(),
        [10, 11, 12, 11]
    );
}

#[test]
fn sizes_and_bare_keys() {
    let (format, got) = read(b"1 0 68\n2 1 7454\n", "x");
    assert_eq!(format, Format::AdaptSize);
    assert_eq!(
        got[1],
        Request {
            value_len: Some(7454),
            ..request(1)
        }
    );

    let (format, got) = read(b"17\nuser:4\n17\n", "x");
    assert_eq!(format, Format::Keys);
    assert_eq!((got[0].key, got[2].key, got[1].key_len), (17, 17, 6));
}

#[test]
fn binary_records_are_told_apart() {
    let mut oracle = Vec::new();
    for (time, id, size, next) in [
        (5u32, 9u64, 100u32, 2i64),
        (6, 10, 200, -1),
        (7, 9, 100, -1),
    ] {
        oracle.extend_from_slice(&time.to_le_bytes());
        oracle.extend_from_slice(&id.to_le_bytes());
        oracle.extend_from_slice(&size.to_le_bytes());
        oracle.extend_from_slice(&next.to_le_bytes());
    }
    let (format, got) = read(&oracle, "x");
    assert_eq!(format, Format::OracleGeneral);
    let second = Request {
        at: Instant(6_000_000_000),
        value_len: Some(200),
        ..request(10)
    };
    assert_eq!(got[1], second);
    assert_eq!(got[2].key, 9);
    let cut = fails(&oracle[..30], Some(Format::OracleGeneral));
    assert!(cut.contains("record 2 has 6 B of 24 B"), "{cut}");

    let keys: Vec<u8> = [0xf000_0001u32, 3, 0, 3, 9, 1, 2]
        .map(u32::to_be_bytes)
        .concat();
    let (format, got) = read(&keys, "x.trace");
    assert_eq!(format, Format::Cache2k);
    assert_eq!(
        (got[0].key, got[1], got.len()),
        (0xf000_0001, request(3), 7)
    );
}

#[test]
fn packed_traces_read_like_plain_ones() {
    let plain = b"1 0 68\n2 1 7454\n".repeat(1000);
    let expected = read(&plain, "x").1;
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&plain).expect("in memory");
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(&plain).expect("in memory");
    let packed = [
        gz.finish().expect("in memory"),
        xz.finish().expect("in memory"),
        zstd::encode_all(&plain[..], 1).expect("in memory"),
    ];
    for bytes in packed {
        assert_eq!(read(&bytes, "misleading.csv").1, expected);
        let cut = fails(&bytes[..bytes.len() - 9], None);
        assert!(cut.contains("cannot read on after record"), "{cut}");
    }
}

#[test]
fn errors_name_the_place_and_the_text() {
    let error = fails(b"1 0 68\n2 x 7454\n", None);
    assert_eq!(
        error,
        "adaptsize line 2: the id is not a number: \"2 x 7454\""
    );
    let error = fails(b"5,k,1,0,7,frob,60\n", None);
    assert!(
        error.starts_with("twitter line 1: the operation"),
        "{error}"
    );
    let error = fails(b"a b c d e\n", None);
    assert!(error.contains("--format"), "{error}");
    let long = [b"1 2 3\n".as_slice(), &vec![b'7'; 70_000]].concat();
    assert!(
        fails(&long, None).contains("line 2: the line is longer"),
        "a line without end"
    );
}

proptest! {
    /// Whatever the bytes are, whatever they are taken for: no panic, and it ends.
    #[test]
    fn random_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        format in proptest::option::of(0usize..FORMATS.len()),
    ) {
        let format = format.map(|i| FORMATS[i].0);
        if let Ok(reader) = Reader::new(Box::new(io::Cursor::new(bytes)), "", format) {
            prop_assert!(reader.take(1 << 16).count() <= 1 << 16);
        }
    }

    /// The same with bytes that look like traces, where the parsers get further.
    #[test]
    fn nearly_right_lines_never_panic(
        text in "([0-9]{1,22}[ ,]|get,|GET,|28,|2a,|[a-z]{0,3},|\n){0,60}",
        format in 0usize..FORMATS.len(),
    ) {
        let format = Some(FORMATS[format].0);
        let reader = Reader::new(Box::new(io::Cursor::new(text.into_bytes())), "", format);
        if let Ok(reader) = reader {
            reader.take(1 << 16).for_each(drop);
        }
    }

    /// What is around a trace may be broken too.
    #[test]
    fn broken_packing_never_panics(
        magic in 0usize..3,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let magics: [&[u8]; 3] = [&[0x1f, 0x8b, 8], b"\xfd7zXZ\0", &[0x28, 0xb5, 0x2f, 0xfd]];
        let packed = [magics[magic], &bytes].concat();
        if let Ok(reader) = Reader::new(Box::new(io::Cursor::new(packed)), "", None) {
            reader.take(1 << 16).for_each(drop);
        }
    }
}

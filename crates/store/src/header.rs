//! What precedes an item's key and what follows it, bit by bit.
//!
//! ```text
//! word 0   bits 0..27 value offset in its segment, in units of 4 B (split layout; else 0)
//!          bit 27 place of the twin follows
//!          bit 28 flags follow | bit 29 expiry follows | bit 30 CAS unique follows
//!          bit 31 checks follow the key
//! word 1   bits 0..24 value length in bytes | bits 24..32 key length in bytes
//! word 2   state, see [`State`]
//! then     place of the twin u32, or [`NO_TWIN`] | flags u32 | expiry u32 (Unix seconds)
//!          | CAS unique low u32, high u32: those that follow
//! then     the key
//! then     from the next multiple of 4 bytes on: check of the head u32, of the value u32, if they
//!          follow. The check of the head has all its bits the other way round once the item is
//!          dead
//! ```
//!
//! So an item without flags, expiry and explicit CAS unique has 12 bytes of header, and a 20 byte
//! key makes 32. The checks lie behind the key because no GET looks at them: it touches the same
//! lines as without. Words 0, 1 and the optional ones never change once the item can be found,
//! except expiry and twin; these and the state are changed in place. Items on the fast device of a
//! store that has a deep one have the word of a twin from their beginning.
//!
//! What it never does: touch memory; it turns words into fields and back.

use nyx_base::UnixSeconds;

/// Words of the longest header.
pub(crate) const WORDS_MAX: usize = 8;
/// Words of the shortest header.
pub(crate) const WORDS_MIN: usize = 3;
/// The word that holds the state.
pub(crate) const STATE_WORD: usize = 2;
/// The word that holds the twin's place, where there is one.
pub(crate) const TWIN_WORD: usize = 3;
/// What that word holds of an item without a twin.
pub(crate) const NO_TWIN: u32 = u32::MAX;
/// The longest value in bytes that a header can state.
pub(crate) const VALUE_LEN_LIMIT: u32 = (1 << 24) - 1;

const KEY_LEN_SHIFT: u32 = 24;
const OFFSET_MASK: u32 = (1 << 27) - 1;
const OFFSET_UNIT: u32 = 4;
const HAS_TWIN: u32 = 1 << 27;
const HAS_FLAGS: u32 = 1 << 28;
const HAS_EXPIRY: u32 = 1 << 29;
const HAS_CAS: u32 = 1 << 30;
const HAS_CHECKS: u32 = 1 << 31;

/// Everything but key, value, state and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) value_offset: u32,
    pub(crate) value_len: u32,
    pub(crate) key_len: u8,
    pub(crate) flags: u32,
    pub(crate) expiry: UnixSeconds,
    pub(crate) cas: Option<u64>,
    /// There is a word for a twin.
    pub(crate) has_twin: bool,
    /// Checks follow the key: the item is to survive.
    pub(crate) has_checks: bool,
}

/// What tells an item from rubbish: see `check`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) head: u32,
    pub(crate) value: u32,
}

impl Header {
    /// The header's length in words.
    #[inline]
    pub(crate) fn words_len(&self) -> usize {
        WORDS_MIN
            + usize::from(self.has_twin)
            + usize::from(self.flags != 0)
            + usize::from(self.expiry != UnixSeconds::NEVER)
            + 2 * usize::from(self.cas.is_some())
    }

    /// The header's length in words, from its first word alone.
    #[inline]
    pub(crate) fn words_len_of(first: u32) -> usize {
        let marks = (first & (HAS_TWIN | HAS_FLAGS | HAS_EXPIRY | HAS_CAS)).count_ones() as usize;
        WORDS_MIN + marks + usize::from(first & HAS_CAS != 0)
    }

    /// Bytes from the header's begin to the key's end.
    #[inline]
    pub(crate) fn head_len(&self) -> usize {
        4 * self.words_len() + usize::from(self.key_len)
    }

    /// Bytes from the header's begin to the end of the checks, or of the key where there are none.
    #[inline]
    pub(crate) fn record_len(&self) -> usize {
        let head = self.head_len();
        match self.has_checks {
            true => head.next_multiple_of(4) + size_of::<Checks>(),
            false => head,
        }
    }

    /// The word of the expiry, where there is one.
    #[inline]
    pub(crate) fn expiry_word(&self) -> Option<usize> {
        let before = usize::from(self.has_twin) + usize::from(self.flags != 0);
        (self.expiry != UnixSeconds::NEVER).then_some(WORDS_MIN + before)
    }

    /// The word of the check of the head, where there is one; that of the value's is the next.
    #[inline]
    pub(crate) fn check_word(&self) -> Option<usize> {
        self.has_checks.then(|| self.head_len().div_ceil(4))
    }

    /// The same, from the first two words alone.
    #[inline]
    pub(crate) fn check_word_of(first: u32, lengths: u32) -> Option<usize> {
        let key_words = (lengths >> KEY_LEN_SHIFT).div_ceil(4) as usize;
        (first & HAS_CHECKS != 0).then(|| Header::words_len_of(first) + key_words)
    }

    /// The words, of which [`Header::words_len`] count.
    #[inline]
    pub(crate) fn encode(&self, state: State) -> [u32; WORDS_MAX] {
        debug_assert!(
            self.value_offset.is_multiple_of(OFFSET_UNIT) && self.value_len <= VALUE_LEN_LIMIT
        );
        let mut words = [0; WORDS_MAX];
        words[0] = self.value_offset / OFFSET_UNIT;
        words[1] = self.value_len | u32::from(self.key_len) << KEY_LEN_SHIFT;
        words[STATE_WORD] = state.0;
        let mut at = WORDS_MIN;
        if self.has_twin {
            words[0] |= HAS_TWIN;
            words[TWIN_WORD] = NO_TWIN;
            at += 1;
        }
        if self.flags != 0 {
            words[0] |= HAS_FLAGS;
            words[at] = self.flags;
            at += 1;
        }
        if self.expiry != UnixSeconds::NEVER {
            words[0] |= HAS_EXPIRY;
            words[at] = self.expiry.0;
            at += 1;
        }
        if let Some(cas) = self.cas {
            words[0] |= HAS_CAS;
            words[at] = cas as u32;
            words[at + 1] = (cas >> 32) as u32;
        }
        if self.has_checks {
            words[0] |= HAS_CHECKS;
        }
        words
    }

    /// The fields; `word` gives a word by its number and is asked for no more than there are.
    #[inline(always)]
    pub(crate) fn decode(word: impl Fn(usize) -> u32) -> Header {
        let (first, lengths) = (word(0), word(1));
        let mut header = Header {
            value_offset: (first & OFFSET_MASK) * OFFSET_UNIT,
            value_len: lengths & VALUE_LEN_LIMIT,
            key_len: (lengths >> KEY_LEN_SHIFT) as u8,
            flags: 0,
            expiry: UnixSeconds::NEVER,
            cas: None,
            has_twin: first & HAS_TWIN != 0,
            has_checks: first & HAS_CHECKS != 0,
        };
        let mut at = WORDS_MIN + usize::from(header.has_twin);
        if first & HAS_FLAGS != 0 {
            header.flags = word(at);
            at += 1;
        }
        if first & HAS_EXPIRY != 0 {
            header.expiry = UnixSeconds(word(at));
            at += 1;
        }
        if first & HAS_CAS != 0 {
            header.cas = Some(u64::from(word(at)) | u64::from(word(at + 1)) << 32);
        }
        header
    }
}

/// What changes in place: bits 0..20 the second of the last access (modulo 2^20), bits 20..27 how
/// often it was used, then marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u32);

const ACCESS_MASK: u32 = (1 << 20) - 1;
const FREQUENCY_SHIFT: u32 = 20;
const FREQUENCY_MASK: u32 = 0x7f;
const FETCHED: u32 = 1 << 27;
const STALE: u32 = 1 << 28;
const WIN_SENT: u32 = 1 << 29;
const CAS_SEEN: u32 = 1 << 30;
const DEAD: u32 = 1 << 31;
/// Up to here every access counts; beyond, one a second, so that the counter grows with the
/// logarithm of a burst (Segcache section 3.4 counts in the same spirit).
const FREQUENCY_EXACT: u8 = 16;

impl State {
    /// Of an item written now.
    pub(crate) fn written(now: UnixSeconds) -> State {
        State(now.0 & ACCESS_MASK)
    }

    /// After an access; a counter stops at `most`.
    #[inline]
    pub(crate) fn accessed(self, now: UnixSeconds, most: u8) -> State {
        let same_second = self.0 & ACCESS_MASK == now.0 & ACCESS_MASK;
        let rest = self.0 & !ACCESS_MASK;
        let frequency = self.frequency();
        let counts = frequency < most && (frequency < FREQUENCY_EXACT || !same_second);
        State(rest | FETCHED | now.0 & ACCESS_MASK).with_frequency(frequency + u8::from(counts))
    }

    #[inline]
    pub(crate) fn frequency(self) -> u8 {
        (self.0 >> FREQUENCY_SHIFT & FREQUENCY_MASK) as u8
    }

    #[inline]
    pub(crate) fn with_frequency(self, frequency: u8) -> State {
        let rest = self.0 & !(FREQUENCY_MASK << FREQUENCY_SHIFT);
        State(rest | u32::from(frequency) << FREQUENCY_SHIFT)
    }

    /// The last access at or before `now`.
    #[inline]
    pub(crate) fn last_access(self, now: UnixSeconds) -> UnixSeconds {
        let back = now.0.wrapping_sub(self.0 & ACCESS_MASK) & ACCESS_MASK;
        UnixSeconds(now.0.saturating_sub(back))
    }

    #[inline]
    pub(crate) fn is_fetched(self) -> bool {
        self.0 & FETCHED != 0
    }

    #[inline]
    pub(crate) fn is_stale(self) -> bool {
        self.0 & STALE != 0
    }

    #[inline]
    pub(crate) fn is_win_sent(self) -> bool {
        self.0 & WIN_SENT != 0
    }

    #[inline]
    pub(crate) fn is_cas_seen(self) -> bool {
        self.0 & CAS_SEEN != 0
    }

    pub(crate) fn with_stale(self, stale: bool) -> State {
        State(if stale {
            self.0 | STALE
        } else {
            self.0 & !STALE
        })
    }

    pub(crate) fn with_win_sent(self, sent: bool) -> State {
        State(if sent {
            self.0 | WIN_SENT
        } else {
            self.0 & !WIN_SENT
        })
    }

    pub(crate) fn with_cas_seen(self) -> State {
        State(self.0 | CAS_SEEN)
    }

    /// Whether the item is known to be out of the index. Not every dead item is marked.
    #[inline]
    pub(crate) fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    #[inline]
    pub(crate) fn with_dead(self) -> State {
        State(self.0 | DEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_come_back_as_they_were(
            offset in 0u32..1 << 27,
            value_len in 0..=VALUE_LEN_LIMIT,
            key_len: u8,
            flags: u32,
            expiry: u32,
            cas: Option<u64>,
            has_twin: bool,
            has_checks: bool,
            state: u32,
        ) {
            let expiry = UnixSeconds(expiry);
            let value_offset = offset * OFFSET_UNIT;
            let header =
                Header {
                    value_offset, value_len, key_len, flags, expiry, cas, has_twin, has_checks,
                };
            let words = header.encode(State(state));
            let len = header.words_len();
            prop_assert_eq!(Header::decode(|at| words[..len][at]), header);
            prop_assert_eq!(words[STATE_WORD], state);
            prop_assert!(!has_twin || words[TWIN_WORD] == NO_TWIN);
            prop_assert_eq!(Header::words_len_of(words[0]), len);
            if let Some(at) = header.expiry_word() {
                prop_assert_eq!(words[at], expiry.0);
            }
            let check_word = header.check_word();
            prop_assert_eq!(Header::check_word_of(words[0], words[1]), check_word);
            prop_assert_eq!(check_word.is_some(), has_checks);
            match check_word {
                Some(at) => {
                    prop_assert!((0..4).contains(&(4 * at - header.head_len())), "behind the key");
                    prop_assert_eq!(4 * at + 8, header.record_len());
                }
                None => prop_assert_eq!(header.head_len(), header.record_len()),
            }
        }
    }

    #[test]
    fn marks_do_not_disturb_each_other() {
        let now = UnixSeconds(1_800_000_123);
        let state = State::written(now)
            .with_stale(true)
            .with_win_sent(true)
            .with_cas_seen();
        let state = state
            .accessed(UnixSeconds(now.0 + 7), 127)
            .with_win_sent(false);
        assert!(state.is_stale() && state.is_cas_seen() && state.is_fetched());
        assert!(!state.is_win_sent());
        assert_eq!(state.frequency(), 1);
        assert_eq!(
            state.last_access(UnixSeconds(now.0 + 1000)),
            UnixSeconds(now.0 + 7)
        );
    }

    #[test]
    fn a_counter_stops_and_slows_down() {
        let mut state = State::written(UnixSeconds(0));
        for _ in 0..100 {
            state = state.accessed(UnixSeconds(0), 127);
        }
        assert_eq!(state.frequency(), FREQUENCY_EXACT);
        for second in 1..1000 {
            state = state.accessed(UnixSeconds(second), 127);
        }
        assert_eq!(state.frequency(), 127);
        assert_eq!(
            State::written(UnixSeconds(0))
                .accessed(UnixSeconds(0), 0)
                .frequency(),
            0
        );
    }
}

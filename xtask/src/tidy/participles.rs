//! Whether the name of a function is a past participle (`told`, `unread`, `killed_at`), which says
//! what happened to something instead of what the function does.
//!
//! The rule, for functions that are not tests (tests are named after behaviour):
//!
//! 1. A name of one word counts if the word is a participle: it is in `IRREGULAR`, or it ends in `ed`
//!    and is not in `NOT_PARTICIPLES`, or it is `un` before one of both (`unsent`, `unread`).
//! 2. A name of several words counts if its only verb is a participle: it is one with a preposition or
//!    an adverb after it (`told_of`, `killed_at`), or it ends with one and begins with neither a word
//!    of `OPENINGS` (`is_closed`, `with_observed`) nor one of `VERBS` (`drop_queued`).
//!
//! A participle before a noun is an adjective, and the name is a noun: `sorted_rows` and
//! `built_in_roles` are fine. Forms that equal the infinitive (`read`, `set`, `split`) are verbs.
//! Fields and enum variants are not checked.

/// Past participles and past tenses that do not end in `ed`.
const IRREGULAR: &str = "\
    ate beaten became been began begun bent bitten bought broke broken brought built came caught chose chosen dealt did done \
    drawn drew driven drove eaten fallen fed fell felt flown forbidden forgot forgotten fought found froze frozen gave given \
    gone got gotten grew grown hanged heard held hid hidden hung kept knew known laid lain led left lent lost made meant met \
    misread mistaken overridden overtaken overthrown overwritten paid proven ran ridden risen rode rotten said sat saw seen \
    sent shaken shown shrunk slept sold sought spelt spent spoke spoken spun stolen stood struck stuck sunk swept sworn \
    taken taught thrown told took torn understood undone unread went withdrawn withheld woken won worn wove woven written \
    wrote";

/// Words that end in `ed` and are infinitives or nouns; `cloned`, `copied` and `sorted`, which every Rust programmer knows from iterators;
/// and `desired`, which is a noun of this domain.
const NOT_PARTICIPLES: &str = "\
    bed bleed breed cloned copied creed deed desired embed exceed feed greed heed hundred indeed need proceed red reed seed \
    shed shred sled sorted speed succeed weed";

/// At the end of a name and after a participle, these words make the participle the verb of the name.
const PREPOSITIONS: &str = "\
    about after again ahead alone along already among anew apart around as aside at away back before below between beyond by \
    down during for from in into last late later of off on once only out over since so than that through to together twice \
    under until up upon with within without";

/// First words that say what the function is: a predicate, a conversion, a constructor or an accessor.
const OPENINGS: &str = "\
    all any are as be by can does for from get had has have into is may must needs new of should some stays to try until was \
    were will with";

/// Verbs at the start of a name, with what follows as their object. If a name is reported although it starts with a verb, add the verb.
const VERBS: &str = "\
    accept add admit allocate allow append apply assert assign attest block build call cancel change check classify clear \
    close collect commit compare compute convert copy count create decode delete describe detect discard drain drop emit \
    encode end ensure escape evaluate expect explain export extract fetch fill filter find finish flag flip follow forget \
    fork format give guard handle hash hide hold ignore import inject insert interrupts is join judge keep kill leave limit \
    list load lock log make map mark match measure merge move name note notify observe open parse pass pick plan poll \
    prepare print protect prove prune publish pull push put query queue quote raise reach read receive recheck record \
    recover redact refuse reject release remove render repeat replace replay report request require reset resolve restore \
    resume return returns rewrite run save scan schedule search see select send set show shuffle sign simulate skip sort \
    spawn split spoil stage start step stop store stream submit sum summarise switch sync take tell test tighten trace track \
    transform trim truncate turn undo unlock update use validate verify visit wait walk warn watch withdraw wrap write";

/// Whether this name of a function is a participle by the rule above. Tests are not checked.
pub(super) fn is_participle_name(name: &str) -> bool {
    let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        [] => false,
        [word] => is_participle(word),
        [first, second] if is_participle(first) && contains(PREPOSITIONS, second) => true,
        [first, .., last] => is_participle(last) && !contains(OPENINGS, first) && !contains(VERBS, first),
    }
}

fn is_participle(word: &str) -> bool {
    let is_regular = word.len() > 3 && word.ends_with("ed");
    let is_irregular = contains(IRREGULAR, word) || word.strip_prefix("un").is_some_and(|rest| contains(IRREGULAR, rest));
    (is_regular || is_irregular) && !contains(NOT_PARTICIPLES, word)
}

/// Whether a list of words, separated by spaces, contains this one.
fn contains(list: &str, word: &str) -> bool {
    list.split(' ').any(|listed| listed == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_participles_count() {
        for name in
            ["told", "heard", "seen", "judged", "begun", "unread", "unasked", "unsent", "left", "waited", "limited", "unknown", "_kept"]
        {
            assert!(is_participle_name(name), "{name}");
        }
    }

    #[test]
    fn infinitives_nouns_and_known_rust_names_do_not_count() {
        for name in
            ["read", "set", "split", "feed", "seed", "need", "sorted", "cloned", "desired", "new", "len", "undo", "unlock", "unit", "", "_"]
        {
            assert!(!is_participle_name(name), "{name}");
        }
    }

    #[test]
    fn a_name_whose_only_verb_is_a_participle_counts() {
        for name in ["told_of", "killed_at", "not_denied", "guest_locked", "carried_out", "json_shuffled"] {
            assert!(is_participle_name(name), "{name}");
        }
    }

    #[test]
    fn predicates_verbs_with_objects_and_noun_phrases_do_not_count() {
        for name in [
            "is_closed",
            "has_started",
            "drop_queued",
            "with_observed",
            "sorted_rows",
            "built_in_roles",
            "flip_bit",
            "end_abandoned",
            "named_tests",
            "unsettled_operations",
            "send_change",
        ] {
            assert!(!is_participle_name(name), "{name}");
        }
    }
}

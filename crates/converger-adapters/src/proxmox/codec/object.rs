//! JSON objects of Proxmox. A list is not accepted in place of an object, and no key may occur twice.
//!
//! A derived `Deserialize` reads a list as the members of a struct in order, and a map keeps the last of two equal keys. Both would give
//! meaning to a malformed response.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A struct that was encoded as an object.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// The members of an object, with unique keys.
pub(super) struct UniqueMap<V>(pub(super) BTreeMap<Box<str>, V>);

impl<V> Default for UniqueMap<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<Box<str>, V>()? {
            if members.insert(key, value).is_some() {
                return Err(A::Error::custom("duplicate key in an object"));
            }
        }
        Ok(UniqueMap(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Row {
        key: u32,
    }

    #[test]
    fn rejects_a_list_in_place_of_an_object_and_duplicate_keys() {
        assert!(serde_json::from_str::<Row>("[5]").is_ok_and(|row| row.key == 5), "a derived `Deserialize` accepts a list");
        let error = |json: &str| serde_json::from_str::<Object<Row>>(json).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error("[5]").starts_with("invalid type: sequence, expected an object"), "{}", error("[5]"));
        assert!(error(r#"{"key":5,"key":6}"#).starts_with("duplicate field `key`"));
        assert_eq!(error(r#"{"key":5,"more":[]}"#), "");
        assert!(serde_json::from_str::<UniqueMap<u32>>(r#"{"a":1,"a":1}"#).is_err());
        assert!(serde_json::from_str::<UniqueMap<u32>>(r#"[]"#).is_err());
        assert!(serde_json::from_str::<UniqueMap<u32>>(r#"{"a":1,"b":1}"#).is_ok_and(|map| map.0.len() == 2));
    }
}

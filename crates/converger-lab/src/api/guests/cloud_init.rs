//! `cloudinit`: which settings the current image has, and a new image.
//!
//! An image is also made at every start of a guest; that is in `task_work`.

use serde_json::{Value, json};

use crate::api::ApiCall;
use crate::flavour::Flavour;
use crate::guest::{ConfigSection, LabGuest};
use crate::response::{ApiData, ApiError};
use crate::world::World;

/// Every setting with its value in the image, and its new value if it was changed since. A setting that was added has no value, and one
/// that was removed is marked.
pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let now = guest.cloud_init_settings();
    let baked = guest.baked_cloud_init.as_ref().unwrap_or(&now);
    let set = now.iter().map(|(key, value)| setting_json(world, guest, baked, key, value));
    let removed = baked.keys().filter(|key| !now.contains_key(*key)).map(|key| json!({ "key": key, "delete": 1 }));
    Ok(json!(set.chain(removed).collect::<Vec<Value>>()).into())
}

/// Release 7 names the values `old` and `new`.
fn setting_json(world: &World, guest: &LabGuest, baked: &ConfigSection, key: &str, value: &str) -> Value {
    let shown = |text: &str| Value::from(guest.type_value(key, text, world.flavour));
    let (old_name, new_name) = if world.flavour == Flavour::V7 { ("old", "new") } else { ("value", "pending") };
    match baked.get(key) {
        None => json!({ "key": key, new_name: shown(value) }),
        Some(old) if old == value => json!({ "key": key, old_name: shown(value) }),
        Some(old) => json!({ "key": key, old_name: shown(old), new_name: shown(value) }),
    }
}

/// Makes a new image at once.
pub(super) fn regenerate(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    if let Some(locked) = call.find_guest(world)?.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    if let Some(guest) = world.guests.change_guest(call.vmid()) {
        guest.bake_cloud_init();
    }
    Ok(ApiData::null())
}

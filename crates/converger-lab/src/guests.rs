//! All guests of a world, cached texts of their configs, and which guests changed since the last
//! broadcast of their node.
//!
//! Reading is free; every change goes through this type, so that no stale text is served. What a
//! guest is, is in `guest`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::flavour::Flavour;
use crate::guest::{ConfigSection, GuestProcess, LabGuest};

#[derive(Clone, Default)]
pub(crate) struct LabGuests {
    all: BTreeMap<u32, LabGuest>,
    /// Texts that were rendered from each guest's config since it last changed.
    rendered: BTreeMap<u32, RenderedConfig>,
    /// Guests that changed since the last broadcast of their node.
    changed: BTreeSet<u32>,
}

/// Texts of a guest, rendered on first use.
#[derive(Clone, Debug, Default)]
struct RenderedConfig {
    digest: OnceLock<String>,
    /// The response of `pending`.
    pending: OnceLock<Vec<u8>>,
    /// The response of `status/current`, before and after the uptime.
    current: OnceLock<(Vec<u8>, Vec<u8>)>,
    /// The settings in effect and the pending ones, for comparisons.
    sections: OnceLock<(Arc<ConfigSection>, Arc<ConfigSection>)>,
}

impl Deref for LabGuests {
    type Target = BTreeMap<u32, LabGuest>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl LabGuests {
    /// A guest to change. It is broadcast again, and its cached texts are dropped.
    pub(crate) fn change_guest(&mut self, vmid: u32) -> Option<&mut LabGuest> {
        self.invalidate_guest(vmid);
        self.all.get_mut(&vmid)
    }

    /// The process of a guest to change. The config and the texts rendered from it stay valid.
    pub(crate) fn change_process(&mut self, vmid: u32) -> Option<&mut Option<GuestProcess>> {
        self.mark_changed(vmid);
        if let Some(written) = self.rendered.get_mut(&vmid) {
            written.current = OnceLock::new();
        }
        self.all.get_mut(&vmid).map(|guest| &mut guest.process)
    }

    /// Writes a guest's cloud-init image. Nothing that is rendered shows it.
    pub(crate) fn bake_cloud_init(&mut self, vmid: u32) {
        if let Some(guest) = self.all.get_mut(&vmid) {
            guest.bake_cloud_init();
        }
    }

    /// Adds a guest or replaces the one with the same VMID.
    pub(crate) fn put_guest(&mut self, guest: LabGuest) {
        self.invalidate_guest(guest.vmid);
        self.all.insert(guest.vmid, guest);
    }

    /// Removes a guest.
    pub(crate) fn remove_guest(&mut self, vmid: u32) -> Option<LabGuest> {
        self.rendered.remove(&vmid);
        self.all.remove(&vmid)
    }

    /// Includes the guest in the next broadcast.
    pub(crate) fn mark_changed(&mut self, vmid: u32) {
        self.changed.insert(vmid);
    }

    /// Includes the guest in the next broadcast and drops its cached texts.
    fn invalidate_guest(&mut self, vmid: u32) {
        self.mark_changed(vmid);
        self.rendered.insert(vmid, RenderedConfig::default());
    }

    /// The response of `pending`. Cached, because it is requested much more often than it changes.
    pub(crate) fn pending_text(&self, vmid: u32, flavour: Flavour) -> &[u8] {
        let (Some(guest), Some(written)) = (self.all.get(&vmid), self.rendered.get(&vmid)) else { return &[] };
        written.pending.get_or_init(|| guest.render_pending(written.digest.get_or_init(|| guest.digest()), flavour))
    }

    /// The response of `status/current`, before and after the uptime. Rendered once.
    pub(crate) fn current_text(&self, vmid: u32, make: impl FnOnce() -> (Vec<u8>, Vec<u8>)) -> Option<&(Vec<u8>, Vec<u8>)> {
        self.rendered.get(&vmid).map(|written| written.current.get_or_init(make))
    }

    /// The settings in effect, and the pending ones.
    pub(crate) fn sections_of(&self, guest: &LabGuest) -> (Arc<ConfigSection>, Arc<ConfigSection>) {
        let copies = || (Arc::new(guest.config.clone()), Arc::new(guest.pending.clone()));
        self.rendered.get(&guest.vmid).map_or_else(copies, |written| written.sections.get_or_init(copies).clone())
    }

    /// The digest of a guest's config.
    pub(crate) fn digest_of(&self, guest: &LabGuest) -> String {
        self.rendered.get(&guest.vmid).map_or_else(|| guest.digest(), |written| written.digest.get_or_init(|| guest.digest()).clone())
    }

    /// The guests that a node must broadcast: its own that changed, and removed ones.
    pub(crate) fn changed_on(&self, node: &str) -> Vec<u32> {
        let is_here = |vmid: &&u32| self.all.get(vmid).is_none_or(|guest| guest.node == node);
        self.changed.iter().filter(is_here).copied().collect()
    }

    /// Records that the guests were broadcast.
    pub(crate) fn mark_broadcast(&mut self, vmids: &[u32]) {
        for vmid in vmids {
            self.changed.remove(vmid);
        }
    }

    /// Makes a node broadcast all its guests again.
    pub(crate) fn mark_node_changed(&mut self, node: &str) {
        self.changed.extend(self.all.values().filter(|guest| guest.node == node).map(|guest| guest.vmid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::LabGuestKind;

    fn test_guests() -> LabGuests {
        let mut guests = LabGuests::default();
        guests.put_guest(LabGuest::new(100, LabGuestKind::Qemu, "pve1"));
        guests
    }

    fn render_pending(guests: &mut LabGuests) -> String {
        String::from_utf8_lossy(guests.pending_text(100, Flavour::V9)).into_owned()
    }

    /// After every kind of change, the cached text equals a freshly rendered one.
    #[test]
    fn every_change_invalidates_rendered_texts() {
        let set = |guest: &mut LabGuest, value: &str| drop(guest.config.insert("cores".to_owned(), value.to_owned()));
        let changes: [&dyn Fn(&mut LabGuests); 3] = [
            &|guests| set(guests.change_guest(100).expect("a guest"), "2"),
            &|guests| {
                let mut other = LabGuest::new(100, LabGuestKind::Qemu, "pve1");
                set(&mut other, "4");
                guests.put_guest(other);
            },
            &|guests| drop(guests.remove_guest(100)),
        ];
        let mut guests = test_guests();
        let mut before = render_pending(&mut guests);
        for (number, change) in (0..).zip(changes) {
            change(&mut guests);
            let current = guests.current_text(100, || (vec![number], Vec::new()));
            assert!(current.is_none_or(|cached| cached.0 == [number]));
            let anew = guests.get(&100).map(|guest| guest.render_pending(&guest.digest(), Flavour::V9)).unwrap_or_default();
            let now = render_pending(&mut guests);
            assert_eq!(now.as_bytes(), anew);
            assert_ne!(now, before);
            let digests = guests.get(&100).map(|guest| (guests.digest_of(guest), guest.digest()));
            assert!(digests.is_none_or(|(cached, anew)| cached == anew));
            let sections = guests.get(&100).map(|guest| (guests.sections_of(guest).0, guest.config.clone()));
            assert!(sections.is_none_or(|(cached, anew)| *cached == anew));
            before = now;
        }
    }

    #[test]
    fn process_changes_keep_the_rendered_config_only() {
        let mut guests = test_guests();
        guests.mark_broadcast(&[100]);
        let (before, current) = (render_pending(&mut guests), guests.current_text(100, || (b"down".to_vec(), Vec::new())).cloned());
        let process = guests.change_process(100).expect("a guest");
        *process = Some(GuestProcess { pid: 7, since_ms: 0, qemu_state: "running".to_owned() });
        assert_eq!((render_pending(&mut guests), guests.changed_on("pve1")), (before, vec![100]));
        assert_ne!(guests.current_text(100, || (b"up".to_vec(), Vec::new())).cloned(), current);
        assert!(guests.change_process(101).is_none());
    }

    #[test]
    fn changed_guests_are_broadcast_once_and_removed_guests_by_every_node() {
        let mut guests = test_guests();
        assert_eq!((guests.changed_on("pve1"), guests.changed_on("pve2")), (vec![100], vec![]));
        guests.mark_broadcast(&[100]);
        assert!(guests.changed_on("pve1").is_empty());
        guests.mark_node_changed("pve1");
        guests.remove_guest(100);
        assert_eq!((guests.changed_on("pve1"), guests.changed_on("pve2")), (vec![100], vec![100]));
    }
}

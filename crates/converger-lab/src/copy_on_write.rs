//! Data that copies of a world share until one of them changes it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Copied on the first write.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopyOnWrite<T>(Arc<T>);

impl<T> From<T> for CopyOnWrite<T> {
    fn from(own: T) -> Self {
        Self(Arc::new(own))
    }
}

impl<T> Deref for CopyOnWrite<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for CopyOnWrite<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_to_a_copy_leaves_the_original_unchanged() {
        let first = CopyOnWrite::from(vec![1]);
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.0, &second.0));
        second.push(2);
        assert_eq!((&*first, &*second), (&vec![1], &vec![1, 2]));
    }
}

//! Environment names when several processes use one state directory.

use converger_core::apply::{EnvironmentBinding, NameConflict};
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{Batch, Store, StoreError, StoreReader as _, StoreRefusal, StoreWrite};

use super::{open_store, state_directory_path};

/// Each process has its own connection and does not know of the other. The transaction decides, so holds under one name cannot be
/// bypassed with another name.
#[test]
fn g12_of_two_names_for_one_cluster_at_once_one_is_refused() {
    for _ in 0..8 {
        let (_above, directory) = state_directory_path();
        let names = ["site-a", "site-b"].map(|name| EnvironmentName::new(name).expect("a name"));
        let stores = [open_store(&directory), open_store(&directory)];
        let cluster = OperationSample::binding(&names[0]).cluster;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let both = names.iter().zip(&stores).map(|(name, store)| {
                let binding = EnvironmentBinding { environment: name.clone(), cluster: cluster.clone(), by: "ann".into(), at_ms: 1 };
                scope.spawn(move || block_on(store.commit(Batch::from(StoreWrite::Bind(binding)))))
            });
            both.collect::<Vec<_>>().into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        let bound: Vec<EnvironmentName> =
            block_on(stores[0].names()).expect("read").bindings().map(|binding| binding.environment.clone()).collect();
        assert_eq!((bound.len(), answers.iter().filter(|answer| answer.is_ok()).count()), (1, 1), "{answers:?}");
        let refused = answers.into_iter().find_map(Result::err).expect("one is refused");
        let StoreError::Refused(StoreRefusal::Name(NameConflict::SecondName { environment, bound_as })) = refused else {
            panic!("{refused}")
        };
        assert_eq!((&bound[0], names.contains(&environment), environment != bound_as), (&bound_as, true, true));
    }
}

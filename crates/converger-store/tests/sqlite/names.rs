//! Names of environments where several processes use one state directory.

use converger_core::apply::{EnvironmentBinding, NameConflict};
use converger_core::guest::EnvironmentName;
use converger_store::conformance::{Sample, now};
use converger_store::{Batch, Refused, Store, StoreError, Write};

use super::{open, place};

/// Each has its own connection and neither knows of the other: the transaction decides, and holds under one name are not bypassed by another.
#[test]
fn g12_of_two_names_for_one_cluster_at_once_one_is_refused() {
    for _ in 0..8 {
        let (_above, directory) = place();
        let names = ["site-a", "site-b"].map(|name| EnvironmentName::new(name).expect("a name"));
        let stores = [open(&directory), open(&directory)];
        let cluster = Sample::binding(&names[0]).cluster;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let both = names.iter().zip(&stores).map(|(name, store)| {
                let binding = EnvironmentBinding { environment: name.clone(), cluster: cluster.clone(), by: "ann".into(), at_ms: 1 };
                scope.spawn(move || now(store.commit(Batch::from(Write::Bind(binding)))))
            });
            both.collect::<Vec<_>>().into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        let bound: Vec<EnvironmentName> =
            now(stores[0].names()).expect("read").bindings().map(|binding| binding.environment.clone()).collect();
        assert_eq!((bound.len(), answers.iter().filter(|answer| answer.is_ok()).count()), (1, 1), "{answers:?}");
        let refused = answers.into_iter().find_map(Result::err).expect("one is refused");
        let StoreError::Refused(Refused::Name(NameConflict::SecondName { environment, bound_as })) = refused else { panic!("{refused}") };
        assert_eq!((&bound[0], names.contains(&environment), environment != bound_as), (&bound_as, true, true));
    }
}

//! Exhaustive search: every order of all possible actions in a small world, from the first state to the last.
//!
//! Breadth-first, so that a broken rule is reported with a shortest path. Worlds are compared completely, not by hash, so none is skipped
//! by accident. [`SearchModel::check`] runs on each world. Every action must increase [`SearchModel::progress`], so no path is endless,
//! and what holds at the end of every path holds eventually.
//!
//! Must not know about schedules, operations or anything else that a model describes.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::rc::Rc;

/// A model to search.
pub(crate) trait SearchModel {
    /// The complete state at one moment.
    type World: Ord;
    /// A possible next action.
    type Action: Clone + Debug;

    fn initial_world(&self) -> Self::World;
    /// All possible next actions.
    fn actions(&self, world: &Self::World) -> Vec<Self::Action>;
    /// The world after an action, or the rule that the action breaks.
    fn apply_action(&self, world: &Self::World, action: &Self::Action) -> Result<Self::World, String>;
    /// Checks the rules that a world must keep.
    fn check(&self, world: &Self::World) -> Result<(), String>;
    /// The progress of a world; each action must increase it.
    fn progress(&self, world: &Self::World) -> (u64, u64);
}

/// The extent of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchSummary {
    pub(crate) worlds: usize,
    pub(crate) actions: usize,
    /// Worlds without further actions.
    pub(crate) ends: usize,
    /// The longest of the shortest paths.
    pub(crate) depth: usize,
}

/// A broken rule, and a shortest path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokenRule {
    pub(crate) rule: String,
    pub(crate) path: Vec<String>,
}

/// How a world was found first: its parent, the action, and the depth.
type ParentLink<A> = (usize, Option<A>, usize);

/// Visits every reachable world. More than `worlds_max` worlds are an error of the model, which is meant to be small.
pub(crate) fn explore<M: SearchModel>(model: &M, worlds_max: usize) -> Result<SearchSummary, BrokenRule> {
    let first = Rc::new(model.initial_world());
    let mut known = BTreeSet::from([Rc::clone(&first)]);
    let mut origins: Vec<ParentLink<M::Action>> = vec![(0, None, 0)];
    let mut queue = VecDeque::from([(0, first)]);
    let mut explored = SearchSummary::default();
    while let Some((at, world)) = queue.pop_front() {
        let broken = |rule: String, last: Option<&M::Action>| BrokenRule { rule, path: path_to(&origins, at, last) };
        model.check(&world).map_err(|rule| broken(rule, None))?;
        let actions = model.actions(&world);
        explored.ends += usize::from(actions.is_empty());
        explored.depth = origins[at].2;
        let mut found = Vec::new();
        for action in actions {
            explored.actions += 1;
            let next = model.apply_action(&world, &action).map_err(|rule| broken(rule, Some(&action)))?;
            if model.progress(&next) <= model.progress(&world) {
                return Err(broken("the action makes no progress".into(), Some(&action)));
            }
            let next = Rc::new(next);
            if known.insert(Rc::clone(&next)) {
                found.push((action, next));
            }
        }
        let depth = origins[at].2 + 1;
        for (action, next) in found {
            queue.push_back((origins.len(), next));
            origins.push((at, Some(action), depth));
        }
        assert!(known.len() <= worlds_max, "more than {worlds_max} worlds: the search would not end");
    }
    explored.worlds = known.len();
    Ok(explored)
}

fn path_to<A: Clone + Debug>(origins: &[ParentLink<A>], mut at: usize, last: Option<&A>) -> Vec<String> {
    let mut path: Vec<String> = last.iter().map(|action| format!("{action:?}")).collect();
    while let (before, Some(action), _) = &origins[at] {
        path.push(format!("{action:?}"));
        at = *before;
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum CounterMove {
        Left,
        Right,
        Fall,
    }

    /// Two counters that can each be raised to a bound.
    struct CounterModel {
        bound: u64,
        forbidden: Option<(u64, u64)>,
        /// Whether the first of them can also be lowered.
        falls: bool,
    }

    impl SearchModel for CounterModel {
        type World = (u64, u64);
        type Action = CounterMove;

        fn initial_world(&self) -> (u64, u64) {
            (0, 0)
        }

        fn actions(&self, world: &(u64, u64)) -> Vec<CounterMove> {
            let mut actions = Vec::new();
            actions.extend((world.0 < self.bound).then_some(CounterMove::Left));
            actions.extend((world.1 < self.bound).then_some(CounterMove::Right));
            actions.extend((self.falls && world.0 > 0).then_some(CounterMove::Fall));
            actions
        }

        fn apply_action(&self, world: &(u64, u64), action: &CounterMove) -> Result<(u64, u64), String> {
            Ok(match *action {
                CounterMove::Left => (world.0 + 1, world.1),
                CounterMove::Right => (world.0, world.1 + 1),
                CounterMove::Fall => (world.0 - 1, world.1),
            })
        }

        fn check(&self, world: &(u64, u64)) -> Result<(), String> {
            if self.forbidden == Some(*world) { Err("forbidden".into()) } else { Ok(()) }
        }

        fn progress(&self, world: &(u64, u64)) -> (u64, u64) {
            (0, world.0 + world.1)
        }
    }

    #[test]
    fn visits_every_world_once_and_reaches_the_end() {
        let explored = explore(&CounterModel { bound: 9, forbidden: None, falls: false }, 100);
        assert_eq!(explored, Ok(SearchSummary { worlds: 100, actions: 180, ends: 1, depth: 18 }));
    }

    #[test]
    fn finds_a_forbidden_world_by_the_shortest_path() {
        let broken = explore(&CounterModel { bound: 9, forbidden: Some((2, 1)), falls: false }, 100).expect_err("it is there");
        assert_eq!((broken.rule.as_str(), broken.path), ("forbidden", ["Left", "Left", "Right"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn detects_a_cycle() {
        let broken = explore(&CounterModel { bound: 9, forbidden: None, falls: true }, 100).expect_err("it is endless");
        assert_eq!(broken.path, ["Left", "Fall"]);
    }
}

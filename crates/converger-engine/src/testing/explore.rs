//! Every order of everything that can happen in a small world, from the first moment to the last: an exhaustive search.
//!
//! Breadth first, so that what breaks a rule is told in as few steps as there are. A world is known again by all of itself and
//! not by a hash of it: nothing is left out by accident. What is asked of each world is [`Model::check`]; since every action
//! must bring a world [`Model::further`], no path is endless, and what holds wherever a path ends is what happens eventually.
//!
//! What never enters: lanes, operations, or anything else that a model is about.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::rc::Rc;

/// What is searched.
pub(crate) trait Model {
    /// All that counts at one moment.
    type World: Ord;
    /// Something that may happen next.
    type Action: Clone + Debug;

    fn first(&self) -> Self::World;
    /// All that may happen next.
    fn actions(&self, world: &Self::World) -> Vec<Self::Action>;
    /// What comes of it, or the rule that it breaks.
    fn act(&self, world: &Self::World, action: &Self::Action) -> Result<Self::World, String>;
    /// The rule that a world breaks by being as it is.
    fn check(&self, world: &Self::World) -> Result<(), String>;
    /// How far a world is; each action must bring it further.
    fn further(&self, world: &Self::World) -> (u64, u64);
}

/// How much was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Explored {
    pub(crate) worlds: usize,
    pub(crate) actions: usize,
    /// Where nothing more can happen.
    pub(crate) ends: usize,
    /// The longest of the shortest ways.
    pub(crate) depth: usize,
}

/// A rule that was broken, and the shortest way there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) rule: String,
    pub(crate) way: Vec<String>,
}

/// Where a world was found first: from which, by which action, and how deep.
type Origin<A> = (usize, Option<A>, usize);

/// Looks at every world that can be reached. More than `worlds_max` of them are no small world, and an error of the model.
pub(crate) fn explore<M: Model>(model: &M, worlds_max: usize) -> Result<Explored, Broken> {
    let first = Rc::new(model.first());
    let mut known = BTreeSet::from([Rc::clone(&first)]);
    let mut origins: Vec<Origin<M::Action>> = vec![(0, None, 0)];
    let mut queue = VecDeque::from([(0, first)]);
    let mut explored = Explored::default();
    while let Some((at, world)) = queue.pop_front() {
        let broken = |rule: String, last: Option<&M::Action>| Broken { rule, way: way(&origins, at, last) };
        model.check(&world).map_err(|rule| broken(rule, None))?;
        let actions = model.actions(&world);
        explored.ends += usize::from(actions.is_empty());
        explored.depth = origins[at].2;
        let mut found = Vec::new();
        for action in actions {
            explored.actions += 1;
            let next = model.act(&world, &action).map_err(|rule| broken(rule, Some(&action)))?;
            if model.further(&next) <= model.further(&world) {
                return Err(broken("nothing comes of it, for ever".into(), Some(&action)));
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
        assert!(known.len() <= worlds_max, "more than {worlds_max} worlds: the search would not come to its end");
    }
    explored.worlds = known.len();
    Ok(explored)
}

fn way<A: Clone + Debug>(origins: &[Origin<A>], mut at: usize, last: Option<&A>) -> Vec<String> {
    let mut way: Vec<String> = last.iter().map(|action| format!("{action:?}")).collect();
    while let (before, Some(action), _) = &origins[at] {
        way.push(format!("{action:?}"));
        at = *before;
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Move {
        Left,
        Right,
        Fall,
    }

    /// Two counters that may each be raised to a bound.
    struct Counters {
        bound: u64,
        forbidden: Option<(u64, u64)>,
        /// Whether the first of them may fall back too.
        falls: bool,
    }

    impl Model for Counters {
        type World = (u64, u64);
        type Action = Move;

        fn first(&self) -> (u64, u64) {
            (0, 0)
        }

        fn actions(&self, world: &(u64, u64)) -> Vec<Move> {
            let mut actions = Vec::new();
            actions.extend((world.0 < self.bound).then_some(Move::Left));
            actions.extend((world.1 < self.bound).then_some(Move::Right));
            actions.extend((self.falls && world.0 > 0).then_some(Move::Fall));
            actions
        }

        fn act(&self, world: &(u64, u64), action: &Move) -> Result<(u64, u64), String> {
            Ok(match *action {
                Move::Left => (world.0 + 1, world.1),
                Move::Right => (world.0, world.1 + 1),
                Move::Fall => (world.0 - 1, world.1),
            })
        }

        fn check(&self, world: &(u64, u64)) -> Result<(), String> {
            if self.forbidden == Some(*world) { Err("forbidden".into()) } else { Ok(()) }
        }

        fn further(&self, world: &(u64, u64)) -> (u64, u64) {
            (0, world.0 + world.1)
        }
    }

    #[test]
    fn every_world_is_seen_once_and_the_end_is_reached() {
        let explored = explore(&Counters { bound: 9, forbidden: None, falls: false }, 100);
        assert_eq!(explored, Ok(Explored { worlds: 100, actions: 180, ends: 1, depth: 18 }));
    }

    #[test]
    fn what_is_forbidden_is_found_by_the_shortest_way() {
        let broken = explore(&Counters { bound: 9, forbidden: Some((2, 1)), falls: false }, 100).expect_err("it is there");
        assert_eq!((broken.rule.as_str(), broken.way), ("forbidden", ["Left", "Left", "Right"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn what_goes_round_in_circles_is_found() {
        let broken = explore(&Counters { bound: 9, forbidden: None, falls: true }, 100).expect_err("it is endless");
        assert_eq!(broken.way, ["Left", "Fall"]);
    }
}

//! The protocols of the archive and of a restore as models, each checked over every state that it can reach.
//!
//! A model is small: a few offsets, two or three processes, one or two crashes. Within that it is complete: any process
//! may be stopped between any two of its steps for as long as it likes, be killed, or wake up when nobody expects it.
//! Each model says which code its steps stand for; a change of one is a change of the other. Each rule of a protocol is
//! left out in turn, and then an invariant has to break: else the model sees too little, or the rule is not needed.
//!
//! `cargo test --release --test model -- --nocapture` prints how many states there are, and the shortest way to each
//! broken invariant. MODEL=full takes larger instances (`make sim`).

mod checkpoints;
mod explore;
mod generations;
mod ledger;
mod restore;
mod topic_change;
mod turns;

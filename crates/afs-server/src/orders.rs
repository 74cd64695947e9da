//! Orders of administrators to the process, through the overseer's service. Doing it is left to the program, which says whether
//! it obeys: inside another program, as in `afar up`, nobody does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// An order to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// End, and start again with the program that is installed then.
    Restart,
    /// End.
    Stop,
}

/// The way of orders to the program. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Orders(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_obeyed: AtomicBool,
    order: Mutex<Option<Order>>,
    is_given: Notify,
}

impl Orders {
    /// Notes that the caller does what is ordered, from now on.
    pub(crate) fn obey(&self) {
        self.0.is_obeyed.store(true, Ordering::Relaxed);
    }

    /// True if somebody does what is ordered.
    pub(crate) fn are_obeyed(&self) -> bool {
        self.0.is_obeyed.load(Ordering::Relaxed)
    }

    /// Gives an order; false if nobody obeys.
    pub(crate) fn give(&self, order: Order) -> bool {
        if !self.are_obeyed() {
            return false;
        }
        *self.0.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
        self.0.is_given.notify_one();
        true
    }

    /// The next order, when there is one.
    pub async fn next(&self) -> Order {
        loop {
            let order = self.0.order.lock().unwrap_or_else(PoisonError::into_inner).take();
            match order {
                Some(order) => return order,
                None => self.0.is_given.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_order_is_refused_where_nobody_obeys_and_else_waits_to_be_taken() {
        let orders = Orders::default();
        assert!(!orders.give(Order::Stop));
        orders.obey();
        assert!(orders.give(Order::Restart));
        assert_eq!(orders.next().await, Order::Restart);
    }
}

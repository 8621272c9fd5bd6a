use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A network path to something, whose delay can be changed while it is used.
pub struct Link {
    pub address: SocketAddr,
    delay: watch::Sender<Duration>,
}

impl Link {
    pub async fn to(target: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, receiver) = watch::channel(delay);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(carry(near_read, far_write, receiver.clone()));
                tokio::spawn(carry(far_read, near_write, watch::channel(Duration::ZERO).1));
            }
        });
        Self { address, delay: sender }
    }

    /// How long what is sent towards the target stays on the way.
    pub fn set_delay(&self, delay: Duration) {
        self.delay.send_replace(delay);
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: watch::Receiver<Duration>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let delay = *delay.borrow();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

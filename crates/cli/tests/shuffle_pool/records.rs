//! A shuffle of so many records, each key once: written, sealed and read whole, by the Rust client.

use partage_shuffle_client::{
    Address, Attempt, Client, CutBy, Error, Sealed, Settings, Shuffle, StartOptions, Written,
};

/// How many input partitions the shuffle has.
pub const INPUTS: u32 = 4;

/// What each input partition has.
#[derive(Debug, Clone, Copy)]
pub struct Records {
    /// Records of each of them.
    pub of_input: u64,
    pub value: &'static [u8],
}

pub async fn client(nodes: &[String]) -> Client {
    let nodes: Vec<Address> = nodes.iter().map(|node| node.parse().unwrap()).collect();
    Client::connect(nodes, Settings::default()).await.unwrap()
}

/// Keys of all input partitions are those of the numbers below [`Records::all`], each once, and in no order.
fn key(number: u64) -> [u8; 8] {
    number.reverse_bits().to_be_bytes()
}

impl Records {
    pub const fn all(self) -> u64 {
        self.of_input * INPUTS as u64
    }

    pub async fn produce(self, mut attempt: Attempt) -> Result<Written, Error> {
        for number in 0..self.of_input {
            let number = number * u64::from(INPUTS) + u64::from(attempt.partition());
            attempt.write(&key(number), self.value).await?;
        }
        attempt.end().await
    }

    pub async fn write(self, client: &Client, shuffle: &Shuffle) {
        for partition in 0..INPUTS {
            client.write(shuffle, partition, |attempt| self.produce(attempt)).await.unwrap();
        }
    }

    pub async fn seal(self, client: &Client, shuffle: &Shuffle) {
        match client.seal(shuffle.id, 0..INPUTS).await.unwrap() {
            Sealed::Whole { records, .. } => assert_eq!(records, self.all()),
            Sealed::Lacks(partitions) => panic!("{partitions:?} are lacking"),
        }
    }

    /// Starts a shuffle that is sealed with all of them.
    pub async fn sealed(self, client: &Client) -> Shuffle {
        let shuffle = client.start(&StartOptions::default()).await.unwrap();
        self.write(client, &shuffle).await;
        self.seal(client, &shuffle).await;
        shuffle
    }

    /// Reads all, and checks it.
    pub async fn read(self, client: &Client, shuffle: &Shuffle) {
        let mut found = Vec::new();
        for i in 0..3 {
            let mut reading = client.read(shuffle.id, i, 3, CutBy::Records);
            while let Some(records) = reading.next().await.unwrap() {
                for (key, _) in &records {
                    found.push(key.to_vec());
                }
            }
        }
        let mut expected: Vec<Vec<u8>> = (0..self.all()).map(|number| key(number).to_vec()).collect();
        expected.sort();
        assert_eq!(found.len(), expected.len());
        assert!(found == expected, "each record once, in order");
    }
}

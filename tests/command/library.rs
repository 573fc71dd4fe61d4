//! A program that uses the library: quantises a model, and stops after a number of steps. `tests/command/test_library.py` runs it.
//!
//! ```text
//! library MODEL DATA OUTPUT STEPS
//! ```

use compress::{Compress, Event, Events, options::DataOptions, values::Int8};

/// Stops a job after some steps, and keeps their names.
struct After {
    steps: usize,
    begun: Vec<String>,
}

impl Events for After {
    fn event(&mut self, event: Event) {
        if let Event::Began(step) = event {
            self.begun.push(step.name.into());
        }
    }

    fn stopped(&mut self) -> bool {
        self.begun.len() >= self.steps
    }
}

fn main() {
    let given = <[String; 4]>::try_from(std::env::args().skip(1).collect::<Vec<_>>());
    let [model, data, output, steps] = given.expect("four arguments");
    let mut events = After { steps: steps.parse().expect("a number of steps"), begun: vec![] };
    let job = Compress {
        model: model.into(),
        output: Some(output.into()),
        int8: Some(Int8::Static),
        data: DataOptions { data: Some(data.into()), ..Default::default() },
        ..Compress::default()
    };
    let result = job.run(&mut events).map(|report| report.accuracy.unwrap().samples);
    println!("{:?} {:?}", result.map_err(|e| e.kind()), events.begun);
}

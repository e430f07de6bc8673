//! A device without hardware: it executes commands on a few numbers, or records them as a GPU's stream does.

/// A command: the number at `at` becomes its product with `factor` plus `addend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Index of the number.
    pub at: usize,
    /// The factor.
    pub factor: i64,
    /// The number that is added to the product.
    pub addend: i64,
}

/// A device that counts launches, captures and replays, for tests of run modes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingDevice {
    /// The numbers that commands work on.
    pub memory: Vec<i64>,
    /// Commands that were launched one by one.
    pub launches: usize,
    /// Captures that were begun.
    pub captures: usize,
    /// Captured lists that were replayed, each a single launch.
    pub replays: usize,
    capture: Option<Vec<Command>>,
}

impl RecordingDevice {
    /// A device with this many numbers, all zero.
    pub fn new(numbers: usize) -> RecordingDevice {
        RecordingDevice {
            memory: vec![0; numbers],
            ..RecordingDevice::default()
        }
    }

    /// Executes a command, or records it while capturing.
    pub fn launch(&mut self, command: Command) {
        match &mut self.capture {
            Some(commands) => commands.push(command),
            None => {
                self.launches += 1;
                self.execute(command);
            }
        }
    }

    /// Records commands from now on instead of executing them.
    pub fn begin_capture(&mut self) {
        assert!(self.capture.is_none(), "a capture is under way");
        self.captures += 1;
        self.capture = Some(vec![]);
    }

    /// Ends a capture and gives what was recorded.
    pub fn end_capture(&mut self) -> Vec<Command> {
        self.capture.take().expect("a capture is under way")
    }

    /// Executes recorded commands as one launch.
    pub fn replay(&mut self, commands: &[Command]) {
        self.replays += 1;
        commands.iter().for_each(|command| self.execute(*command));
    }

    fn execute(&mut self, command: Command) {
        let Command { at, factor, addend } = command;
        self.memory[at] = self.memory[at] * factor + addend;
    }
}

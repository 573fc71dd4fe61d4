//! How long a device takes for what it is given, by events on its stream: handing work over takes another time.

use crate::device::Device;
use ::burn::backend::DispatchDevice;
use cubecl::{
    client::{Client, ProfileWindow},
    future::block_on,
    profile::ProfileDuration,
};

/// A measurement that has begun.
pub struct Timer {
    client: Client,
    window: Option<ProfileWindow>,
}

/// A measurement that has ended, on a device that may not have come there yet.
pub struct Elapsed(ProfileDuration);

impl Timer {
    /// Begins where the device is a GPU.
    pub fn start(device: &Device) -> Option<Self> {
        let DispatchDevice::Cube(cube) = device.burn() else { return None };
        let client = cube.client();
        let window = client.profile_start().ok()?;
        Some(Self { client, window: Some(window) })
    }

    /// Ends it; `None` where the device failed meanwhile.
    pub fn stop(mut self) -> Option<Elapsed> {
        let window = self.window.take()?;
        self.client.profile_end(window).ok().map(Elapsed)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(window) = self.window.take() {
            self.client.profile_abandon(window);
        }
    }
}

impl Elapsed {
    /// Milliseconds, once the device is there; `None` where it failed.
    pub fn ms(self) -> Option<f64> {
        let _reading = super::reading().ok()?;
        block_on(self.0.resolve()).map(|ticks| ticks.duration().as_secs_f64() * 1e3)
    }
}

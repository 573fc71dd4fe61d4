use super::*;

fn share(s: &str) -> Result<f64, String> {
    s.parse().map(Share::get)
}

fn bytes(s: &str) -> Result<f64, String> {
    s.parse().map(Bytes::get)
}

fn milliseconds(s: &str) -> Result<f64, String> {
    s.parse().map(Milliseconds::get)
}

#[test]
fn shares_and_sizes() {
    assert_eq!(share("1%").unwrap(), 0.01);
    assert_eq!(share("0.01").unwrap(), 0.01);
    assert!(share("0.5").is_err() && share("1").is_err() && share("50%").unwrap() == 0.5);
    assert_eq!((milliseconds("800us").unwrap(), milliseconds("1.5s").unwrap()), (0.8, 1500.0));
    assert!(milliseconds("5").is_err() && milliseconds("-1ms").is_err());
    assert!(share("120%").is_err() && share("one").is_err() && share("NaN").is_err());
    assert_eq!(bytes("30MB").unwrap(), 30e6);
    assert_eq!(bytes("1.5 GiB").unwrap(), 1.5 * 1024f64.powi(3));
    assert!(bytes("30").unwrap_err().contains("30MB") && bytes("4096").unwrap() == 4096.0);
    assert!(share("1").unwrap_err().contains("1% or 100%") && share("3").unwrap_err().contains("3%"));
    assert!(bytes("-3").is_err() && bytes("5 apples").is_err() && bytes("MB").is_err());
}

#[test]
fn what_is_written_reads_back() {
    fn check<T: FromStr + fmt::Display + PartialEq + fmt::Debug + Serialize + for<'a> Deserialize<'a>>(text: &str)
    where
        T::Err: fmt::Debug,
    {
        let value: T = text.parse().unwrap();
        assert_eq!(value, value.to_string().parse().unwrap());
        assert_eq!(value, serde_json::from_str(&serde_json::to_string(&value).unwrap()).unwrap(), "{text}");
    }
    ["0.07", "1%", "29%", "57.3%", "100%", "0"].into_iter().for_each(check::<Share>);
    ["30MB", "999B", "1.5kB", "4096"].into_iter().for_each(check::<Bytes>);
    ["5ms", "800us", "1.5s", "0.1ms"].into_iter().for_each(check::<Milliseconds>);
    ["0", "0.9"].into_iter().for_each(check::<Fraction>);
    ["90s", "1.5h", "30m"].into_iter().for_each(check::<Time>);
    ["0", "18446744073709551615"].into_iter().for_each(check::<Seed>);
    ["auto", "64"].into_iter().for_each(check::<Batch>);
    ["image=1x3x32x32"].into_iter().for_each(check::<InputShape>);
    ["conv.*"].into_iter().for_each(check::<Filter>);
    ["a=b"].into_iter().for_each(check::<Matched>);
    assert!("0".parse::<Count>().is_err() && "-1".parse::<Count>().is_err() && "64".parse::<Count<64>>().is_ok());
}

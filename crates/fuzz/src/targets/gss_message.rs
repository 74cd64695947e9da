//! Messages of Kerberos's GSS-API mechanism: to a service the one that begins a context, and to one that has it what is sealed and signed. The
//! first byte says which.

use crate::shape::Shape;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_security::gss::{self, Accepted, GssError};
use rx_security::keys::{EncType, Key};
use rx_security::time::UnixTime;

/// A published message of MIT Kerberos, in hexadecimal digits, and the time when it was made.
const MESSAGE: &str = "608202b606092a864886f71201020201006e8202a5308202a1a003020105a10302010ea20703050020000000a38201bc618201b8308201b4\
    a003020105a10a1b084c41422e54455354a2243022a003020103a11b30191b086166732d7278676b1b0d5f6166732e6c61622e74657374a3\
    82017930820175a003020112a103020102a282016704820163f682109b64fb55ca70224dcd76d3820db3c8f0b95c003e837bfd2ac47ca855\
    217a225181c139e724ade3f8b23e9f88630ad2c55ff8663566b56d989d991a886557681f3bc2099578460806e5d3041365c2f2073c878ce5\
    fafbecd225338c3a4e340754ea0cd7429ae57942635e572b9ba3d250727b32c624f36c85a8844880b7c9fb6b0f81e359e59cb5465d11ccd2\
    0dd89ff2e56cd16809867044f430ef6d3b953d21be11cb9f50cb5cadd5bca34caf2f06523793a4d1ad7b0dbc8905f906f1548ad073c41e06\
    cf317baf6933f0d417df4df088bbfe170bc201c46dced902a58be8d65d27028ba7fc999de445d0b7347e9e654cc8c8cc88709f129093e8a6\
    45636a6bf4ecd71a7207b65d2bc96067d595b655aa8d7f9dee440e3ef52518f39f28c92bb2864c6914b16099171bdebf686c4103a0170dcc\
    b8b66f2a9cbb1abbfd94b1058a746e18cf8a88651964f402b6aa7e172b0e66de3e1bb6582c236ea1288fd18ba481cb3081c8a003020112a2\
    81c00481bd68e57b7ffa06e82ab8b2dfe8bb7af59cf0381fce1eea9d3adc93056d1881194d45e78f964a2b0688d91664b7dbf8cd13811c88\
    c20462bfa86ccd6fb61d5775992eed1ce327a3f22f227db0b546275649d9efd97f7d2354f3d980e5fda9041d6e88451ecf6c7189659341b2\
    63b39d52a59b66468775ab5d1b3e8aa01b4fc5f0f6f8feee427c5cd102dfee7bd73ab2e2509dbae437e6e7bf7201fb0d1ad6d05261e6aae5\
    0d62371da74bb9caa7d82f22f9394fc2438a3fde143954c2da58";
const NOW: UnixTime = UnixTime(1_795_694_543);
/// The key of the service that it is for.
const SERVICE_KEY: &str = "f6e349229eb5b78feb47554165b6d1d85acb8148bba9ab18de738dc34cc6e671";

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn accept(message: &[u8]) -> Result<Accepted, GssError> {
    let key = Key::rxkad_krb5(2, EncType::AES256, &bytes(SERVICE_KEY));
    gss::accept(&[key], message, NOW, &mut StdRng::seed_from_u64(1))
}

/// The message that the target begins with.
pub fn message() -> Vec<u8> {
    bytes(MESSAGE)
}

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let shape = Shape::EMPTY.with(u64::from(mode % 3));
    let result = match mode % 3 {
        0 => accept(bytes).map(|accepted| {
            assert_eq!(accepted.principal, "user1@LAB.TEST", "nobody else has a good ticket");
            accepted.answer.len()
        }),
        mode => {
            let context = accept(&message()).expect("a good message").context;
            if mode == 1 {
                context.unwrap(bytes).map(|plain| plain.len())
            } else {
                context.verify(b"startparams", bytes).map(|()| 0)
            }
        }
    };
    let shape = match result {
        Ok(len) => shape.with(1).with_count(len),
        Err(error) => shape.with(2 + error as u64).with_count(bytes.len()),
    };
    shape.feature()
}

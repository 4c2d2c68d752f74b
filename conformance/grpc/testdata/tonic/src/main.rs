// SPDX-License-Identifier: Apache-2.0

//! Calls grpc.testing.TestService with tonic: client ADDRESS. It prints a line for each case that
//! passes.

use std::time::Duration;

use prost::Message;
use tonic::client::Grpc;
use tonic::codec::{CompressionEncoding, ProstCodec};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::Bytes;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(bytes = "vec", tag = "2")]
    body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct EchoStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct SimpleRequest {
    #[prost(int32, tag = "2")]
    response_size: i32,
    #[prost(message, optional, tag = "3")]
    payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    response_status: Option<EchoStatus>,
}

/// A SimpleResponse, a StreamingOutputCallResponse or a StreamingInputCallRequest.
#[derive(Clone, PartialEq, Message)]
struct Carrier {
    #[prost(message, optional, tag = "1")]
    payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Message)]
struct Parameters {
    #[prost(int32, tag = "1")]
    size: i32,
    #[prost(int32, tag = "2")]
    interval_us: i32,
}

#[derive(Clone, PartialEq, Message)]
struct OutputRequest {
    #[prost(message, repeated, tag = "2")]
    response_parameters: Vec<Parameters>,
    #[prost(message, optional, tag = "7")]
    response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct InputReply {
    #[prost(int32, tag = "1")]
    aggregated_payload_size: i32,
}

fn path(method: &'static str) -> PathAndQuery {
    format!("/grpc.testing.TestService/{method}").parse().unwrap()
}

fn codec<I: Message + Default + 'static, O: Message + Default + 'static>() -> ProstCodec<I, O> {
    ProstCodec::default()
}

fn sizes(sizes: &[i32], interval_us: i32) -> OutputRequest {
    let response_parameters = sizes.iter().map(|&size| Parameters { size, interval_us }).collect();
    OutputRequest {
        response_parameters,
        response_status: None,
    }
}

fn body(n: usize) -> Carrier {
    Carrier {
        payload: Some(Payload { body: vec![b'x'; n] }),
    }
}

fn length(c: &Carrier) -> usize {
    c.payload.as_ref().map_or(0, |p| p.body.len())
}

fn failing(message: &str) -> Option<EchoStatus> {
    Some(EchoStatus {
        code: 9,
        message: message.into(),
    })
}

fn passed(name: &str) {
    println!("passed {name}");
}

async fn unary(client: &mut Grpc<Channel>, request: Request<SimpleRequest>) -> Result<Response<Carrier>, Status> {
    client.ready().await.unwrap();
    client.unary(request, path("UnaryCall"), codec()).await
}

async fn feed(client: &mut Grpc<Channel>, request: Request<OutputRequest>) -> Result<Streaming<Carrier>, Status> {
    client.ready().await.unwrap();
    Ok(client
        .server_streaming(request, path("StreamingOutputCall"), codec())
        .await?
        .into_inner())
}

async fn lengths(mut stream: Streaming<Carrier>) -> Result<Vec<usize>, Status> {
    let mut all = Vec::new();
    while let Some(c) = stream.message().await? {
        all.push(length(&c));
    }
    Ok(all)
}

#[tokio::main]
async fn main() {
    let address = std::env::args().nth(1).expect("client ADDRESS");
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let client = &mut Grpc::new(channel.clone());

    let reply = unary(
        client,
        Request::new(SimpleRequest {
            response_size: 314159,
            ..Default::default()
        }),
    )
    .await
    .unwrap();
    assert_eq!(length(reply.get_ref()), 314159);
    passed("unary");

    let packing = &mut Grpc::new(channel.clone())
        .send_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Gzip);
    let payload = Some(Payload { body: vec![0; 10000] });
    let reply = unary(
        packing,
        Request::new(SimpleRequest {
            response_size: 10000,
            payload,
            ..Default::default()
        }),
    )
    .await
    .unwrap();
    assert_eq!(length(reply.get_ref()), 10000);
    passed("compression");

    assert_eq!(
        lengths(feed(client, Request::new(sizes(&[1, 20000, 3], 0))).await.unwrap())
            .await
            .unwrap(),
        [1, 20000, 3]
    );
    passed("feed");

    client.ready().await.unwrap();
    let upload = Request::new(tokio_stream::iter([body(1), body(20000), body(3)]));
    let reply: Response<InputReply> = client.client_streaming(upload, path("StreamingInputCall"), codec()).await.unwrap();
    assert_eq!(reply.get_ref().aggregated_payload_size, 20004);
    passed("upload");

    client.ready().await.unwrap();
    let duplex = Request::new(tokio_stream::iter([sizes(&[1], 0), sizes(&[20000, 3], 0)]));
    let replies = client
        .streaming(duplex, path("FullDuplexCall"), codec())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(lengths(replies).await.unwrap(), [1, 20000, 3]);
    passed("duplex");

    let mut request = Request::new(SimpleRequest::default());
    request.metadata_mut().insert("x-grpc-test-echo-initial", "a".parse().unwrap());
    request
        .metadata_mut()
        .insert_bin("x-grpc-test-echo-trailing-bin", MetadataValue::from_bytes(b"\x00\xff"));
    let reply = unary(client, request).await.unwrap(); // tonic puts headers and trailers together
    assert_eq!(reply.metadata().get("x-grpc-test-echo-initial").unwrap(), "a");
    let bytes = reply
        .metadata()
        .get_bin("x-grpc-test-echo-trailing-bin")
        .unwrap()
        .to_bytes()
        .unwrap();
    assert_eq!(bytes, Bytes::from_static(b"\x00\xff"));
    passed("metadata");

    let text = "\t\u{e4} %";
    let e = unary(
        client,
        Request::new(SimpleRequest {
            response_status: failing(text),
            ..Default::default()
        }),
    )
    .await
    .unwrap_err();
    assert_eq!((e.code(), e.message()), (Code::FailedPrecondition, text));
    assert!(e.details().windows(8).any(|part| part == b"a detail"), "{e:?}");
    passed("error details");

    let e = match feed(
        client,
        Request::new(OutputRequest {
            response_status: failing("no"),
            ..Default::default()
        }),
    )
    .await
    {
        Ok(stream) => lengths(stream).await.unwrap_err(),
        Err(e) => e,
    };
    assert_eq!((e.code(), e.message()), (Code::FailedPrecondition, "no"));
    passed("error of a feed");

    client.ready().await.unwrap();
    let e = client
        .unary::<Empty, Empty, _>(Request::new(Empty {}), path("UnimplementedCall"), codec())
        .await
        .unwrap_err();
    assert_eq!(e.code(), Code::Unimplemented, "{e:?}");
    passed("unimplemented");

    let mut request = Request::new(sizes(&[1], 60_000_000));
    request.set_timeout(Duration::from_millis(200));
    let e = match feed(client, request).await {
        Ok(stream) => lengths(stream).await.unwrap_err(),
        Err(e) => e,
    };
    assert!(matches!(e.code(), Code::DeadlineExceeded | Code::Cancelled), "{e:?}"); // tonic's own timer says Cancelled
    passed("deadline");

    let mut stream = feed(client, Request::new(sizes(&[1; 1000], 20_000))).await.unwrap();
    stream.message().await.unwrap().unwrap();
    drop(stream); // resets it
    passed("cancellation");

    let mut calls = Vec::new();
    for size in 0..100 {
        let mut client = Grpc::new(channel.clone());
        calls.push(tokio::spawn(async move {
            let reply = unary(
                &mut client,
                Request::new(SimpleRequest {
                    response_size: size,
                    ..Default::default()
                }),
            )
            .await;
            length(reply.unwrap().get_ref()) == size as usize
        }));
    }
    for call in calls {
        assert!(call.await.unwrap());
    }
    passed("many at once");
}

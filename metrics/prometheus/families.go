// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// A family is the metrics of one name.
type family struct {
	name, help string
	kind       string // counter, gauge or histogram
	labels     []string
	desc       *prometheus.Desc
}

func counter(name, help string, labels ...string) *family {
	return newFamily("counter", name, help, labels)
}
func gauge(name, help string, labels ...string) *family {
	return newFamily("gauge", name, help, labels)
}

func newFamily(kind, name, help string, labels []string) *family {
	return &family{name: name, help: help, kind: kind, labels: labels, desc: prometheus.NewDesc(name, help, labels, nil)}
}

// These are the metrics of servers.
var (
	serverCalls = counter("yodel_server_calls_total",
		"Calls that have ended, by the code that the caller got. The code of a call that succeeded is ok.", "server", "method", "code")
	serverCallers = counter("yodel_server_caller_calls_total",
		"Calls that have ended, by the name of the caller and the code, of servers with ServerOptions.Diagnostics. Callers beyond the first 64 of a method share the name other.",
		"server", "method", "caller", "code")
	serverSeconds = newFamily("histogram", "yodel_server_call_seconds",
		"How long calls took on the server, including middleware and decoding, without streams and calls that were canceled or refused.", []string{"server", "method"})
	serverInFlight = gauge("yodel_server_calls_in_flight", "Calls that have begun and not ended.", "server", "method")
	serverMessages = counter("yodel_server_stream_messages_total", "Messages on streams, sent and received.", "server", "method", "direction")
	serverBytes    = counter("yodel_server_bytes_total",
		"Bytes of the bodies, attachments, metadata and messages of calls that have ended, sent and received.", "server", "method", "direction")
	serverErrors  = counter("yodel_server_errors_total", "Calls that failed with an error that has an ID, by the ID, without canceled calls.", "server", "id")
	serverPanics  = counter("yodel_server_panics_total", "Panics of handlers.", "server")
	serverLeftOut = counter("yodel_server_metadata_left_out_total",
		"Pairs of metadata that replies were sent without, because the protocol of the client cannot carry them or they exceed the limits. The log of the server has their keys.", "server")
	serverConns      = gauge("yodel_server_connections", "Open connections.", "server")
	serverConnEvents = counter("yodel_server_connection_events_total", "Events of connections and listeners, by kind.", "server", "kind")
	serverOpen       = gauge("yodel_server_open_requests", "Requests that are executing or queued, without those of short methods.", "server")
	serverGranted    = gauge("yodel_server_granted_requests", "Open requests that the clients are allowed now.", "server")
	serverMaxOpen    = gauge("yodel_server_max_open_requests", "How many requests may be open: ServerOptions.MaxOpen.", "server")
	serverDraining   = gauge("yodel_server_draining", "1 from the beginning of the server's shutdown, otherwise 0.", "server")
	serverAnnounced  = gauge("yodel_server_announced",
		"1 if the last announcement of the server in a registry succeeded, otherwise 0.", "server", "registry", "addr")
	serverAnnouncedAt = gauge("yodel_server_announced_timestamp_seconds",
		"When the registry last accepted the records of the server, in seconds since 1970; 0 before the first time.", "server", "registry", "addr")
)

// These are the metrics of clients.
var (
	clientCalls = counter("yodel_client_calls_total",
		"Calls that have ended, by the code that the caller got. The code of a call that succeeded is ok.", "client", "method", "code")
	clientSeconds = newFamily("histogram", "yodel_client_call_seconds",
		"How long calls took for the caller, with all attempts, without streams and calls that were canceled or refused.", []string{"client", "method"})
	clientExtra = counter("yodel_client_extra_attempts_total",
		"Attempts after the first one of a call, of calls that have ended. The kind is hedge if the attempt ran beside another one, otherwise retry.", "client", "method", "kind")
	clientMessages = counter("yodel_client_stream_messages_total",
		"Messages on streams that have ended, sent and received.", "client", "method", "direction")
	clientBytes = counter("yodel_client_bytes_total",
		"Bytes of the bodies, attachments, metadata and messages of calls that have ended, sent and received.", "client", "method", "direction")
	clientErrors     = counter("yodel_client_errors_total", "Calls that failed with an error that has an ID, by the ID, without canceled calls.", "client", "id")
	clientConnEvents = counter("yodel_client_connection_events_total", "Events of connections, by kind.", "client", "kind")

	endpointAttempts    = counter("yodel_client_endpoint_attempts_total", "Attempts that were sent.", "client", "endpoint")
	endpointFailures    = counter("yodel_client_endpoint_failures_total", "Attempts that ended with an error, and were not canceled.", "client", "endpoint")
	endpointUnconnected = counter("yodel_client_endpoint_unconnected_total", "Calls that the balancer gave to the endpoint, and that found no connection.", "client", "endpoint")
	endpointInFlight    = gauge("yodel_client_endpoint_in_flight", "Attempts in flight, and calls that wait for a connection.", "client", "endpoint")
	endpointLoad        = gauge("yodel_client_endpoint_load", "Calls that the server is working on, as far as the client knows.", "client", "endpoint")
	endpointRTT         = gauge("yodel_client_endpoint_round_trip_seconds", "The last measured round trip; 0 before the first.", "client", "endpoint")
	endpointConns       = gauge("yodel_client_endpoint_connections", "Open connections.", "client", "endpoint")
	endpointReady       = gauge("yodel_client_endpoint_ready", "1 if the endpoint should receive calls, otherwise 0.", "client", "endpoint")
	endpointNotReady    = gauge("yodel_client_endpoint_not_ready",
		"1 for each reason why the endpoint is not ready: breaker, outlier, connection, or another name.", "client", "endpoint", "by")
	endpointEjections = counter("yodel_client_endpoint_ejections_total", "How often the endpoint became not ready, by reason.", "client", "endpoint", "by")

	resolverInstances = gauge("yodel_client_resolver_instances", "Instances that the client uses.", "client")
	resolverFailing   = gauge("yodel_client_resolver_failing", "1 if the resolver cannot name the instances at the moment, otherwise 0.", "client")
	resolverAge       = gauge("yodel_client_resolver_age_seconds", "Time since the resolver last named the instances. Many resolvers name them only when they change.", "client")
)

// families are all families, in the order of the documentation.
var families = []*family{
	serverCalls, serverCallers, serverSeconds, serverInFlight, serverMessages, serverBytes, serverErrors, serverPanics, serverLeftOut, serverConns, serverConnEvents,
	serverOpen, serverGranted, serverMaxOpen, serverDraining, serverAnnounced, serverAnnouncedAt,
	clientCalls, clientSeconds, clientExtra, clientMessages, clientBytes, clientErrors, clientConnEvents,
	endpointAttempts, endpointFailures, endpointUnconnected, endpointInFlight, endpointLoad, endpointRTT, endpointConns,
	endpointReady, endpointNotReady, endpointEjections,
	resolverInstances, resolverFailing, resolverAge,
}

// A sink takes the metrics of a scrape.
type sink chan<- prometheus.Metric

// add adds a counter or a gauge.
func (s sink) add(f *family, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if f.kind == "counter" {
		kind = prometheus.CounterValue
	}
	s <- prometheus.MustNewConstMetric(f.desc, kind, value, valid(labels)...)
}

// both adds a counter for each direction.
func (s sink) both(f *family, received, sent uint64, labels ...string) {
	s.add(f, float64(received), append(slices.Clip(labels), "received")...)
	s.add(f, float64(sent), append(slices.Clip(labels), "sent")...)
}

// flag adds a gauge that is 1 if set is true, and otherwise 0.
func (s sink) flag(f *family, set bool, labels ...string) {
	value := 0.0
	if set {
		value = 1
	}
	s.add(f, value, labels...)
}

// valid makes names that other programs chose valid label values. Different names stay different,
// because a scrape with the same series twice fails.
func valid(labels []string) []string {
	for i, l := range labels {
		if !utf8.ValidString(l) {
			labels[i] = strconv.QuoteToASCII(l)
		}
	}
	return labels
}

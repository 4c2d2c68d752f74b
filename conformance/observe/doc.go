// SPDX-License-Identifier: Apache-2.0

// Package observe tests metrics and traces with the systems that read them: a server of Prometheus,
// Prometheus' parsers of queries and rules, and the receiver of the OpenTelemetry Collector.
package observe

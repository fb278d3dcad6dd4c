// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

// Hop is where the proxy of a client sends a request.
type Hop struct {
	Proxy string `json:"proxy"`
	// Listener accepts the connection of the application. Routes, VirtualHost and Route are the parts
	// of the configuration that match the request; empty for a connection whose requests are not read.
	Listener    string `json:"listener,omitempty"`
	Routes      string `json:"routes,omitempty"`
	VirtualHost string `json:"virtual_host,omitempty"`
	Route       string `json:"route,omitempty"`
	// Objects are the objects that decide about the route.
	Objects []Origin `json:"objects,omitempty"`
	// Timeout limits the whole request, "" is none. TimeoutBy is what sets it: "route" or "grpc-timeout", the
	// header of the request. PerTry is for each attempt, Idle for a request without a byte. Retries is how
	// often it is repeated at most.
	Timeout   string `json:"timeout,omitempty"`
	TimeoutBy string `json:"timeout_by,omitempty"`
	PerTry    string `json:"timeout_per_try,omitempty"`
	Idle      string `json:"timeout_idle,omitempty"`
	// Wait is how long the listener waits for the first bytes of the client; nil if it does not.
	Wait    *Wait  `json:"wait,omitempty"`
	Retries uint32 `json:"retries,omitempty"`
	// Note says why no route is for a request that is forwarded nevertheless.
	Note string `json:"note,omitempty"`
	// Faults are injected into requests of the route: "abort 50 % with status 503".
	Faults []string `json:"faults,omitempty"`
	// Destinations receive the request, or a share of such requests.
	Destinations []Destination `json:"destinations,omitempty"`
	// Failing is the share of such requests that fail at the proxy, in percent: it aborts them, or they
	// are for a destination without endpoints.
	Failing float64 `json:"failing_percent,omitempty"`
	// Status is that of a response of the proxy itself, Location the target of a redirect.
	Status   uint32 `json:"status,omitempty"`
	Location string `json:"location,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Tried are the first routes that do not match, and what differs.
	Tried []Unmatched `json:"tried,omitempty"`
}

// Wait is how long a listener waits for the first bytes of a client whose server speaks first.
type Wait struct {
	// For is "" without end.
	For string `json:"for,omitempty"`
	// Closes is true if the connection is closed then; else it is forwarded.
	Closes bool `json:"closes,omitempty"`
}

// Unmatched is a route that does not match a request.
type Unmatched struct {
	Route   string `json:"route,omitempty"`
	Differs string `json:"differs"`
}

// Origin is an object with its place.
type Origin struct {
	Ref
	Source string `json:"source,omitempty"`
}

// Destination is a cluster of a proxy.
type Destination struct {
	Cluster string  `json:"cluster"`
	Percent float64 `json:"percent"`
	// Objects are the DestinationRules of the cluster.
	Objects []Origin `json:"objects,omitempty"`
	// Endpoints are the first addresses that receive requests, Healthy is their number, All that of all
	// endpoints. A cluster without known endpoints has none of them.
	Endpoints []string `json:"endpoints,omitempty"`
	Healthy   int      `json:"healthy"`
	All       int      `json:"all"`
	// MutualTLS is how many of the healthy endpoints are reached with mutual TLS of the mesh. TLS is
	// true for a cluster whose connections are encrypted by a DestinationRule.
	MutualTLS int `json:"mutual_tls"`
	// HTTP is the version of HTTP of its connections: "1.1", "2", "" for that of the client or none.
	HTTP string `json:"http,omitempty"`
	TLS  bool   `json:"tls,omitempty"`
	// Anonymous is true if such connections have no certificate of the client.
	Anonymous bool `json:"anonymous,omitempty"`
	// Reason says why no endpoint receives requests. Lost is true if they fail.
	Reason string `json:"reason,omitempty"`
	Lost   bool   `json:"lost,omitempty"`
}

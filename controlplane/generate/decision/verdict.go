// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"net/netip"
	"time"
)

// Request is a request, or a connection to a port whose requests are not read. A connection has no
// method.
type Request struct {
	// Identity is the URI of the client's certificate. It is empty for a client without one.
	Identity string
	// SNI is the server name in the TLS handshake of the client, and ALPN are the protocols that it
	// offers.
	SNI  string
	ALPN []string
	// TLS is true if a client without an identity of the mesh speaks TLS, and if an application sends TLS
	// to its proxy.
	TLS bool
	// Peer is the address of the client, or the zero value if it is unknown. No range of addresses
	// contains an unknown address. Server and Port are those that the client connects to.
	Peer, Server netip.Addr
	Port         uint32

	// Version is that of HTTP. Silent is true for a connection whose client waits for the server to speak first.
	Version string
	Silent  bool

	Method, Host, Path string
	Header             map[string][]string // the names are in lower case
	Now                time.Time           // when tokens are validated
	// Claims are those of a token that Envoy accepted before, and that Header does not contain. They are
	// nil without one. Refused is true if Envoy refused a token of the request.
	Claims  map[string]any
	Refused bool
	// Brief leaves out why rules and routes match or do not match, which takes most of the time if
	// there are many rules.
	Brief bool

	metadata map[string]map[string]any // for routes that compare claims
}

// After returns the request as the routes of the Envoy with a verdict see it.
func (r Request) After(v Verdict) Request {
	r.metadata = v.metadata
	return r
}

// By says what decides about a request.
type By string

// What decides about a request.
const (
	ByConnection By = "connection" // no filter chain accepts the connection, or its TLS handshake fails
	ByPath       By = "path"       // the path cannot be normalized
	ByProtocol   By = "protocol"   // the version of HTTP, or the upgrade, is not accepted
	ByToken      By = "token"      // a token is invalid
	ByRule       By = "rule"       // a rule matches
	ByNoRule     By = "no-rule"    // rules that allow requests exist, and none of them matches
	ByNothing    By = "nothing"    // nothing refuses the request
)

// Verdict is the decision about a request.
type Verdict struct {
	Allowed bool
	// Status is that of Envoy's response if a request is refused. It is 0 for connections.
	Status int
	By     By
	// Rule is the name of the rule that decides, and Matched are the attributes that it matches.
	Rule    string
	Matched []Attribute
	// Reason explains a decision by something else than rules.
	Reason string
	// HTTP is true if the port reads requests, and Path is the normalized path, without its query.
	HTTP bool
	Path string
	// Plaintext is true if the port does not end TLS.
	Plaintext bool
	// Limits are the timeouts of a request with a header grpc-timeout.
	Limits Limits
	// Wait is how long the listener waits for bytes of a client that sends none; nil if it does not.
	Wait *Wait
	// Asked are the external authorizers that are asked. Each of them may still refuse the request.
	Asked []Asked
	// Candidates are rules that would allow the request, and why they do not match.
	Candidates []Candidate
	// Trials are the decisions of rules that are not enforced.
	Trials []Trial
	// Skipped are the names of filters that are not evaluated, and may refuse or change the request.
	Skipped []string

	metadata map[string]map[string]any // what the filters have written
}

// Attribute is an attribute of a request, by its name in policies, and its value.
type Attribute struct {
	Name, Value string
}

// Asked is an external authorizer: its name, the cluster that it runs in, and the rule that asks it.
type Asked struct {
	Provider, Cluster, Rule string
}

// Candidate is a rule that does not match, and the first attribute that does not.
type Candidate struct {
	Rule string
	Attribute
	// Excluded is true if the rule excludes the value, or the value is ambiguous.
	Excluded bool
}

// Trial is what rules that are not enforced would refuse: by the given rule, or because no rule
// matches.
type Trial struct {
	Rule string
}

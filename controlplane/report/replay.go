// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

import "encoding/json"

// RefusedToken begins the details of responses, in access logs, to requests with a token that Envoy
// refuses.
const RefusedToken = "jwt_authn_access_denied"

// Replay compares the decisions about recorded requests with those that other policies would make.
type Replay struct {
	Replica string `json:"replica"`
	// Proxy is the proxy that decides.
	Proxy string `json:"proxy"`
	// Decided is the number of records that were compared. Other are those of requests to other
	// workloads, and Unread those that are not JSON of an access log.
	Decided int `json:"decided"`
	Other   int `json:"other"`
	Unread  int `json:"unread"`
	// Connections are those among the decided that are connections to ports whose requests are not read.
	Connections int `json:"connections,omitempty"`
	// Unnamed are those among the decided that do not say who sent the request. Unclaimed are those that
	// leave out claims of its token that rules compare.
	Unnamed   int `json:"unnamed"`
	Unclaimed int `json:"unclaimed,omitempty"`
	// Flips are the decisions that change.
	Flips []Flip `json:"flips"`
	// Skipped are filters that were not evaluated.
	Skipped []string `json:"not_evaluated,omitempty"`
	// Listeners are for an Envoy that decides about the same requests: the names begin with TrialNow or
	// TrialThen. Tried are the decided records.
	Listeners []json.RawMessage `json:"listeners,omitempty"`
	Tried     []Tried           `json:"tried,omitempty"`
	// Envoy is what the tool finds out with these listeners.
	Envoy *Second `json:"envoy,omitempty"`
}

// Second compares the decisions of an Envoy with those of a replay.
type Second struct {
	// Distinct is the number of different records that the Envoy decides about.
	Distinct int `json:"distinct"`
	// Disputes is the number of records about which Envoy decides otherwise, and Disputed describes
	// some of them.
	Disputes int      `json:"disputes"`
	Disputed []string `json:"disputed,omitempty"`
	// Unsent is the number of records that cannot be sent: over HTTP/1.1, or with a token that is refused.
	Unsent int `json:"unsent"`
}

// Tried is a decided record.
type Tried struct {
	// Line is the number of the record, from 0.
	Line int `json:"line"`
	// Listener is the name of the listener that accepts it, or empty if none does. Server is the address
	// that the client connects to, and TLS whether it must speak TLS there.
	Listener string `json:"listener"`
	Server   string `json:"server"`
	TLS      bool   `json:"tls,omitempty"`
	// Opaque is true if TLS is not terminated there, and HTTP if requests are read. Token is where a token with the claims of the record
	// belongs; nil without claims that are accepted.
	Opaque bool   `json:"opaque,omitempty"`
	HTTP   bool   `json:"http,omitempty"`
	Token  *Token `json:"token,omitempty"`
	// Now and Then say whether the record is allowed. Flip is the index of its flip, or -1.
	Now     bool `json:"now"`
	Then    bool `json:"then"`
	Flip    int  `json:"flip"`
	Unnamed bool `json:"unnamed,omitempty"`
	// Unclaimed is true if the record leaves out claims of a token that rules compare.
	Unclaimed bool `json:"unclaimed,omitempty"`
}

// Token is a place in a request: a header, with text before the token, a parameter or a cookie.
type Token struct {
	Header string `json:"header,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	Param  string `json:"param,omitempty"`
	Cookie string `json:"cookie,omitempty"`
}

// Flip is a number of requests that other policies decide differently, for the same reason.
type Flip struct {
	// Allowed is the new decision.
	Allowed bool `json:"allowed"`
	// By says what refuses the requests, now or then: connection, path, token, rule or no-rule. Rule is
	// that rule.
	By   string `json:"decided_by"`
	Rule *Rule  `json:"rule,omitempty"`
	// Count is the number of requests, and Example is one of them.
	Count   int      `json:"count"`
	Example Recorded `json:"example"`
}

// Recorded is a recorded request.
type Recorded struct {
	Identity string `json:"identity,omitempty"` // empty for a client without a certificate
	Address  string `json:"address,omitempty"`
	Port     uint32 `json:"port"`
	Method   string `json:"method,omitempty"` // empty for a connection
	Host     string `json:"host,omitempty"`
	Path     string `json:"path,omitempty"`
}

// The prefixes of the listeners of a trial.
const (
	TrialNow  = "now/"
	TrialThen = "then/"
)

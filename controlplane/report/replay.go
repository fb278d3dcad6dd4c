// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

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
	// Unnamed are those among the decided that do not say who sent the request.
	Unnamed int `json:"unnamed"`
	// Flips are the decisions that change.
	Flips []Flip `json:"flips"`
	// Skipped are filters that were not evaluated.
	Skipped []string `json:"not_evaluated,omitempty"`
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
	Method   string `json:"method"`
	Host     string `json:"host,omitempty"`
	Path     string `json:"path"`
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

import "time"

// Decision is what one proxy decides about a request.
type Decision struct {
	Replica string `json:"replica"`
	// Proxy is the proxy that decides, and Others is how many serve the same service.
	Proxy  string `json:"proxy"`
	Others int    `json:"other_proxies,omitempty"`
	// Identity is that of the client; empty for a client without a certificate. Address is the
	// address of the client; empty if it is not known.
	Identity string `json:"identity,omitempty"`
	Address  string `json:"address,omitempty"`
	Port     uint32 `json:"port"`
	// Client is where the proxy of the client sends the request; nil if the client has none, or if the
	// request is sent to a proxy directly.
	Client *Hop `json:"client,omitempty"`
	// Gateway is what a gateway decides that the request passes: then Client is where it sends the request.
	Gateway *Decision `json:"gateway,omitempty"`
	// HTTP is false for a port whose requests are not read. Path is the path that rules see.
	HTTP   bool   `json:"http"`
	Method string `json:"method,omitempty"`
	Host   string `json:"host,omitempty"`
	Path   string `json:"path,omitempty"`

	Allowed bool `json:"allowed"`
	// Status is that of the response if a request is refused; 0 if the connection is closed.
	Status int `json:"status,omitempty"`
	// By says what decides: route, tls, connection, protocol, path, token, rule, no-rule or nothing. It is empty if no
	// proxy of the mesh receives the request.
	By string `json:"decided_by"`
	// Deadline is the timeout that the header grpc-timeout of the request sets at the workload.
	Deadline string `json:"deadline,omitempty"`
	// Wait is how long the listener waits for the first bytes of the client; nil if it does not.
	Wait *Wait `json:"wait,omitempty"`
	// Rule decides, because of the attributes in Matched.
	Rule    *Rule       `json:"rule,omitempty"`
	Matched []Attribute `json:"matched,omitempty"`
	Reason  string      `json:"reason,omitempty"`
	// Objects decide, if no rule does: PeerAuthentications, RequestAuthentications, a Sidecar.
	Objects []Origin `json:"objects,omitempty"`
	// Candidates are rules that would allow the request.
	Candidates []Candidate `json:"candidates,omitempty"`
	// Asked are external authorizers, which may still refuse the request.
	Asked []Asked `json:"asked,omitempty"`
	// Trials are rules in dry run that would refuse the request. A trial without a rule is that of
	// rules that allow requests, none of which matches.
	Trials []Trial `json:"dry_run,omitempty"`
	// Skipped are filters that were not evaluated.
	Skipped []string `json:"not_evaluated,omitempty"`
	// Unrecorded is set if the question names a time.
	Unrecorded
	// TLS is how the connection to the workload is secured; nil if no workload of the mesh receives it.
	TLS *Security `json:"tls,omitempty"`
	// Unused are objects for the host of the request that do not decide about it.
	Unused []Unused `json:"unused,omitempty"`
}

// Unused is an object without effect on a request, and why.
type Unused struct {
	Origin
	Reason string `json:"reason"`
}

// Security is how the connection to a workload is secured.
type Security struct {
	// Mutual is true if the workload sees a certificate of the client. Reason says why the client sends
	// one or none, and Objects are the DestinationRules that decide.
	Mutual  bool     `json:"mutual"`
	Reason  string   `json:"reason"`
	Objects []Origin `json:"objects,omitempty"`
	// Mode is what the port of the workload accepts: STRICT, PERMISSIVE or DISABLE. Modes has the
	// PeerAuthentication that decides; nothing for the default.
	Mode  string   `json:"mode"`
	Modes []Origin `json:"mode_objects,omitempty"`
	// Client and Server are the certificates of the two sides; nil for a client without one.
	Client *Certificate `json:"client,omitempty"`
	Server *Certificate `json:"server"`
}

// Certificate is the certificate of a workload.
type Certificate struct {
	Identity string `json:"identity"`
	// Proxy is the proxy of the workload, and Address its address; empty if they are not known.
	Proxy     string `json:"proxy,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Address   string `json:"address,omitempty"`
	// Issuer and NotAfter are those of the certificate that the proxy has now. A control plane does not
	// know them: the command asks the proxy. Error says why it does not answer.
	Issuer   string    `json:"issuer,omitempty"`
	NotAfter time.Time `json:"not_after,omitzero"`
	Error    string    `json:"error,omitempty"`
}

// Rule is a rule of an AuthorizationPolicy.
type Rule struct {
	Ref
	// Index is the position of the rule in the policy, or -1 for a policy without rules.
	Index int `json:"index"`
	// Source is where the policy is, for example "config/catalog.yaml:12".
	Source string `json:"source,omitempty"`
}

// Attribute is an attribute of a request, by its name in policies.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Candidate is a rule that does not match because of an attribute.
type Candidate struct {
	Rule
	Attribute Attribute `json:"attribute,omitzero"`
	// Excluded is true if the rule excludes the value, or the value is ambiguous. Wanted are values
	// of the rule.
	Excluded bool     `json:"excluded,omitempty"`
	Wanted   []string `json:"wanted,omitempty"`
	// Reason explains a rule that matches no request to the port.
	Reason string `json:"reason,omitempty"`
}

// Asked is an external authorizer, by the name of its provider, and the rule that asks it.
type Asked struct {
	Provider string `json:"provider"`
	Rule     *Rule  `json:"rule,omitempty"`
}

// Trial is the decision of a rule in dry run.
type Trial struct {
	Rule *Rule `json:"rule,omitempty"`
}

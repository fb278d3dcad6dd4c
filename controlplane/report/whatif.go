// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// WhatIf is what a change of objects would do.
type WhatIf struct {
	Replica string `json:"replica"`
	// Objects are the objects of the change.
	Objects []Proposed `json:"objects"`
	// Skipped is the number of objects of other API groups, which change nothing.
	Skipped int `json:"skipped,omitempty"`
	// Problems are those that appear with the change, and Solved those that disappear.
	Problems []Problem `json:"problems,omitempty"`
	Solved   []Problem `json:"solved,omitempty"`
	// Statuses are those of proposed objects of the Gateway API, and of others whose status changes: the
	// first ones, with the number of all.
	Statuses    []Status `json:"statuses,omitempty"`
	StatusesAll int      `json:"statuses_all,omitempty"`
	// Unread are ConfigMaps with roots that count as valid, because they are not read yet.
	Unread []string `json:"unread,omitempty"`
	// Proxies are the proxies that receive other configuration, of all that are connected.
	Proxies []Affected `json:"proxies"`
	All     int        `json:"connected"`
	// Flips are the requests whose result changes, among the number of Requests that were tried. Untried
	// are sentences about what was not.
	Flips    []Flipped `json:"flips"`
	Requests int       `json:"requests"`
	Untried  []string  `json:"untried,omitempty"`
	// Static is a bootstrap for envoy --mode validate with the configuration of one proxy.
	Static json.RawMessage `json:"static,omitempty"`
	// Verdicts are what an Envoy says about the configurations.
	// Unvalidated is the number of proxies that it was not asked about.
	Verdicts    []Verdict `json:"envoy,omitempty"`
	Unvalidated int       `json:"unvalidated,omitempty"`
}

// Proposed is an object of a change.
type Proposed struct {
	Ref
	// Action is "created", "updated", "unchanged" or "deleted".
	Action string `json:"action"`
	Source string `json:"source,omitempty"`
}

// Status is the conditions that an object would have.
type Status struct {
	Ref
	Conditions []Condition `json:"conditions"`
}

// Condition is a condition of an object, or of a part of it.
type Condition struct {
	// At names the parent of a route, the listener of a Gateway, or the ancestor of a policy; empty for the
	// object itself.
	At     string `json:"at,omitempty"`
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
	// Message says why; Bad is true if something is wrong.
	Message string `json:"message,omitempty"`
	Bad     bool   `json:"bad,omitempty"`
}

// Affected is a proxy that receives other configuration.
type Affected struct {
	Proxy string `json:"proxy"`
	Envoy string `json:"envoy,omitempty"`
	// Digest is equal for proxies with the same configuration after the change.
	Digest string     `json:"digest"`
	Types  []TypeDiff `json:"types"`
	// Drained are listeners that close their connections after the drain time, and ChainsDrained those
	// that close the connections of changed filter chains only: the first ones, with the numbers of all.
	Drained          []string `json:"drained,omitempty"`
	DrainedAll       int      `json:"drained_all,omitempty"`
	ChainsDrained    []string `json:"chains_drained,omitempty"`
	ChainsDrainedAll int      `json:"chains_drained_all,omitempty"`
}

// Flipped is a request whose result changes.
type Flipped struct {
	// Clients are the identities that send it to a server, "none" for a client without a certificate.
	Clients []string `json:"clients,omitempty"`
	// Routed is the route configuration with which clients route it, or the listener of a connection whose
	// requests are not read; empty at servers.
	Routed string `json:"routes,omitempty"`
	Host   string `json:"host"`
	Port   uint32 `json:"port,omitempty"` // of the workload, or of a connection of a client
	// Method and Path are empty for a connection whose requests are not read.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Headers, Claims of a token, SNI and Address of the client are those that rules or routes compare.
	Headers map[string]string `json:"headers,omitempty"`
	Claims  map[string]any    `json:"claims,omitempty"`
	SNI     string            `json:"sni,omitempty"`
	Address string            `json:"address,omitempty"`
	// Before and After are "allowed", "allowed if NAME allows it" for an external authorizer, or "denied" at
	// servers, and the destinations at clients.
	Before string `json:"before"`
	After  string `json:"after"`
	// Fails is true for a request that succeeds now and would be denied, or lead nowhere.
	Fails bool `json:"fails"`
	// By, Rule and Reason say what denies it, as in Decision.
	By     string `json:"denied_by,omitempty"`
	Rule   *Rule  `json:"rule,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Others is the number of requests that change in the same way and have more attributes.
	Others int `json:"others,omitempty"`
	// Proxies is the number of proxies at which it was tried and changes. Proxy is one of them.
	Proxies int    `json:"proxies"`
	Proxy   string `json:"proxy"`
}

// With returns the headers, the token, the SNI and the address of a request.
func (f Flipped) With() (out []string) {
	for _, name := range slices.Sorted(maps.Keys(f.Headers)) {
		out = append(out, name+": "+f.Headers[name])
	}
	if f.Claims != nil {
		var claims []string
		for _, name := range slices.Sorted(maps.Keys(f.Claims)) {
			text, ok := f.Claims[name].(string)
			if !ok {
				raw, err := json.Marshal(f.Claims[name])
				text = cmp.Or(string(raw), fmt.Sprint(err))
			}
			claims = append(claims, name+"="+text)
		}
		out = append(out, "a token with "+strings.Join(claims, " "))
	}
	if f.SNI != "" {
		out = append(out, "SNI "+f.SNI)
	}
	if f.Address != "" {
		out = append(out, "address "+f.Address)
	}
	return out
}

// Compare orders requests, those that would fail first.
func (f Flipped) Compare(g Flipped) int {
	if f.Fails != g.Fails {
		if f.Fails {
			return -1
		}
		return 1
	}
	return cmp.Or(
		strings.Compare(f.Routed, g.Routed), strings.Compare(f.Host, g.Host), cmp.Compare(f.Port, g.Port), strings.Compare(f.Path, g.Path),
		strings.Compare(f.Method, g.Method), slices.Compare(f.With(), g.With()), strings.Compare(f.Before, g.Before), strings.Compare(f.After, g.After), strings.Compare(f.Proxy, g.Proxy),
	)
}

// TypeDiff is the difference of the resources of a type.
type TypeDiff struct {
	Type string `json:"type"`
	// Bytes is the size of the resources that are sent. Of virtual hosts on demand, only those that the
	// proxy uses are sent.
	Bytes   int `json:"bytes"`
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
	// Repeated are endpoints that do not change, but whose clusters do.
	Repeated int `json:"repeated,omitempty"`
	// Names are some of the resources, with +, ~ or - before their names.
	Names []string `json:"names"`
}

// Verdict is what an Envoy says about the configuration of a proxy.
type Verdict struct {
	Proxy string `json:"proxy"`
	// Alike is the number of proxies with this configuration.
	Alike int `json:"alike"`
	// Error is empty if Envoy accepts it.
	Error string `json:"error,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

import "encoding/json"

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
	// Proxies are the proxies that receive other configuration, of all that are connected.
	Proxies []Affected `json:"proxies"`
	All     int        `json:"connected"`
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

// Affected is a proxy that receives other configuration.
type Affected struct {
	Proxy string `json:"proxy"`
	Envoy string `json:"envoy,omitempty"`
	// Digest is equal for proxies with the same configuration after the change.
	Digest string     `json:"digest"`
	Types  []TypeDiff `json:"types"`
	// Drained are listeners that close their connections after the drain time, and ChainsDrained those
	// that close the connections of changed filter chains only.
	Drained       []string `json:"drained,omitempty"`
	ChainsDrained []string `json:"chains_drained,omitempty"`
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

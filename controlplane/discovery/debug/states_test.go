// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestStates checks that each state of a type has an age and a reason, and that the sentence about the last
// good version follows from what the proxy has accepted.
func TestStates(t *testing.T) {
	t.Parallel()
	connected, later := time.Unix(1000, 0), time.Unix(2000, 0)
	const none, kept = "it is ignored: no earlier version is known", "the last good version stays in force"
	clusters := TypeState{TypeURL: xds.TypeCluster, Name: "cds", Sent: 1, Acked: 1, Since: later}
	for name, c := range map[string]struct {
		of     TypeState
		others []TypeState
		state  report.State
		since  time.Time
		reason string
		kept   string // of rejected ones
	}{
		"not requested":        {TypeState{}, nil, report.NotSent, connected, "the proxy has not requested it", ""},
		"not requested yet":    {TypeState{TypeURL: xds.TypeListener}, []TypeState{clusters}, report.NotSent, connected, "not requested: clusters are incomplete", ""},
		"nothing":              {TypeState{Since: later}, nil, report.NotSent, later, "there is none for the proxy", ""},
		"sent":                 {TypeState{Sent: 2, Acked: 1, Since: later}, nil, report.Stale, later, "no answer to the last response", ""},
		"accepted":             {TypeState{Sent: 2, Acked: 2, Since: later}, nil, report.Synced, later, "acknowledged", ""},
		"resumed":              {TypeState{Resumed: true, Since: later}, nil, report.Synced, later, "acknowledged", ""},
		"rejected":             {TypeState{Sent: 2, Acked: 1, Rejected: 2, Reason: "no", Since: later}, nil, report.Rejected, later, "no", kept},
		"rejected first":       {TypeState{Sent: 2, Rejected: 2, Reason: "no", Since: later}, nil, report.Rejected, later, "no", none},
		"rejected at once":     {TypeState{Sent: 2, Rejected: 2, Resumed: true, Reason: "no", Since: later}, nil, report.Rejected, later, "no", kept},
		"a plugin":             {TypeState{TypeURL: xds.TypeExtension, Name: "ecds", Sent: 2, Acked: 1, Rejected: 2, Reason: "no", Since: later}, nil, report.Rejected, later, "no", kept},
		"a plugin of an agent": {TypeState{TypeURL: xds.TypeExtension, Name: "ecds", Sent: 2, Acked: 1, Rejected: 2, Reason: report.AgentCode + "no", Since: later}, nil, report.Rejected, later, report.AgentCode + "no", "the failStrategy of the plugin decides: requests are denied, or pass without it"},
	} {
		st := &Stream{Proxy: &model.Proxy{ID: "web.shop"}, Connected: connected, Types: append(c.others, c.of), Withheld: func() ([]quarantine.Withheld, bool) { return nil, false }}
		types := debugger{}.describe(st).Types
		got := types[len(types)-1]
		if got.State != c.state || !got.Since.Equal(c.since) || got.Reason != c.reason {
			t.Errorf("%s: got %s since %s, because %q, want %s since %s, because %q", name, got.State, got.Since, got.Reason, c.state, c.since, c.reason)
		}
		if c.kept != "" && report.Kept(got.Name, got.LastGood) != c.kept {
			t.Errorf("%s: got %q, want %q", name, report.Kept(got.Name, got.LastGood), c.kept)
		}
	}
}

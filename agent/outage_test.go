// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

func TestOutage(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)
	const fail, missing, empty, keys = "new connections fail", "changes are missing", "a new Envoy stays empty", "new keys are missing"
	for name, c := range map[string]struct {
		has  holdings
		want []lasting
	}{
		"all": {
			holdings{identity: now.Add(1), revocation: now.Add(2), lastGood: now.Add(3), names: true, relay: xdsproxy.Status{LastResponse: now}},
			[]lasting{
				{"identity", now.Add(1), false, fail},
				{"revocations", now.Add(2), false, "covered peers are refused"},
				{"configuration", time.Time{}, false, missing},
				{"last good", now.Add(3), false, empty},
				{"token keys", time.Time{}, false, keys},
				{"names", time.Time{}, false, missing},
			},
		},
		"nothing": {holdings{}, []lasting{
			{"identity", time.Time{}, true, fail},
			{"configuration", time.Time{}, true, missing},
			{"last good", time.Time{}, true, empty},
			{"token keys", time.Time{}, true, keys},
			{"names", time.Time{}, true, missing},
		}},
		"last good, the identity elsewhere": {holdings{external: true, relay: xdsproxy.Status{LastGood: true}}, []lasting{
			{"identity", time.Time{}, true, "another SDS server manages it"},
			{"configuration", time.Time{}, false, missing},
			{"last good", time.Time{}, true, empty},
			{"token keys", time.Time{}, false, keys},
			{"names", time.Time{}, true, missing},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.has.outage(now).Parts); diff != "" {
				t.Error(diff)
			}
		})
	}
}

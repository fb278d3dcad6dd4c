// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// past is a control plane that has versions of objects, the oldest first.
type past []report.Version

const (
	control    = "10.0.0.7:15014"
	ofControl  = "history of control plane " + control + " (istiod-0)\n"
	itsReplica = "istiod-0"
)

func (p past) Changes(_ context.Context, store, from, to string) (report.Changes, string, error) {
	if store != "" {
		return report.Changes{}, "", errors.New("unexpected store")
	}
	c, err := p.changes(from, to)
	c.Replica = itsReplica
	return c, control, err
}

func (p past) changes(from, to string) (report.Changes, error) {
	mesh := report.Ref{Kind: "MeshConfig", Name: report.MeshName}
	if from == "3h" {
		return report.Changes{Objects: []report.Changed{{
			Ref:    mesh,
			Before: &report.Version{Ref: mesh, At: p[0].At, Object: []byte(`{"accessLogFile":"/dev/stdout","enableTracing":true}`)},
			After:  &report.Version{Ref: mesh, At: p[1].At, Object: []byte(`{"enableTracing":true}`)},
		}}}, nil
	}
	if from == "1h" && to == "" {
		return report.Changes{Objects: []report.Changed{
			{Ref: p[0].Ref, Before: &p[0], After: &p[1]}, {Ref: p[0].Ref, After: &p[0]}, {Ref: p[0].Ref, Before: &p[0]},
		}}, nil
	}
	return report.Changes{}, errors.New("unexpected times")
}

func (p past) Versions(_ context.Context, store string, key model.Key, revision string) (h report.History, _ string, err error) {
	if store != "memory://" {
		return h, "", errors.New("unexpected store")
	}
	h.Replica, h.Stores, h.Begins = itsReplica, []string{"memory://"}, time.Date(2026, 5, 1, 3, 0, 0, 0, time.Local)
	for _, v := range p {
		if key.Name != "" && (v.Name != key.Name || v.Kind != string(key.Kind) || v.Namespace != key.Namespace) || !strings.HasPrefix(v.Revision, revision) {
			continue
		}
		if revision == "" {
			v.Object = nil
		}
		h.Versions = append(h.Versions, v)
	}
	return h, control, nil
}

func (p past) Complete() {}

// of returns what answers a command.
func (p past) of(*cobra.Command) Past { return p }

// pastEntries are three versions of the entry one, which was then deleted.
func pastEntries() past {
	var out past
	for i, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", ""} {
		v := report.Version{
			Ref: report.Ref{Kind: "WorkloadEntry", Namespace: "default", Name: "one"}, At: time.Date(2026, 5, 1, 3, i, 0, 0, time.Local), Change: report.Updated,
			Revision: address, Object: []byte(`{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"one","namespace":"default"},"spec":{"address":"` + address + `"}}`),
		}
		if address == "" {
			v.Change, v.Object = report.Deleted, nil
		}
		out = append(out, v)
	}
	return out
}

// TestRollback checks which version is restored, and that the difference is printed.
func TestRollback(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.past = pastEntries()
	s.want("rollback we/one --dry-run", 0, `--- stored/workloadentry/one
+++ revision 10.0.0.3
@@ -0,0 +1,7 @@
+apiVersion: networking.istio.io/v1
+kind: WorkloadEntry
+metadata:
+  name: one
+  namespace: default
+spec:
+  address: 10.0.0.3
workloadentry/one would be restored to revision 10.0.0.3
`, ofControl)
	if len(s.store("memory://").List(model.WorkloadEntry, "")) > 0 {
		t.Error("rollback --dry-run wrote an object")
	}
	if code, _, errs := s.run("rollback", "we/one"); code != 0 || errs != ofControl {
		t.Errorf("rollback of a deleted object: got exit code %d: %s", code, errs)
	}
	s.want("rollback we one", 0, `--- stored/workloadentry/one
+++ revision 10.0.0.2
@@ -4,4 +4,4 @@
   name: one
   namespace: default
 spec:
-  address: 10.0.0.3
+  address: 10.0.0.2
workloadentry/one restored to revision 10.0.0.2
`, ofControl)
	s.want("rollback we/one --to 10.0.0.2", 0, "workloadentry/one already equals revision 10.0.0.2\n", ofControl)
	s.want("rollback we/one --to 10.0", 1, "", ofControl+"outrigger: --to 10.0 is the beginning of several revisions of workloadentry/one: write more of 10.0.0.1 or 10.0.0.2\n")
	const begins = "control plane " + control + ", which begins at May 01 03:00:00: "
	s.want("rollback we/one --to 11", 1, "", ofControl+"outrigger: workloadentry/one has no revision 11 in the history of "+begins+"the oldest there is 10.0.0.1 of May 01 03:00:00\n")
	s.want("rollback we/two --to 10.0.0.3", 1, "", ofControl+"outrigger: workloadentry/two has no revision 10.0.0.3 in the history of "+begins+"it is one of workloadentry/one\n")
	s.want("rollback we/two", 1, "", ofControl+"outrigger: control plane "+control+" knows no version of workloadentry/two: its history begins at May 01 03:00:00\n")
	for _, name := range []string{"mesh", "MeshConfig/mesh", "meshnetworks"} {
		if code, _, errs := s.run("rollback", name); code != exitUsage || !strings.Contains(errs, "the mesh config is in no store: ") || !strings.Contains(errs, "ConfigMap") {
			t.Errorf("rollback %s = %d %s, want an error that names the cure", name, code, errs)
		}
	}
	for _, args := range [][]string{{"rollback"}, {"rollback", "we"}, {"rollback", "we,vs/one"}, {"rollback", "we/"}, {"rollback", "nothing/one"}} {
		if code, _, _ := s.run(args...); code != exitUsage {
			t.Errorf("%q: got exit code %d, want %d", args, code, exitUsage)
		}
	}
}

// TestRollbackReviews checks that rollback prints the findings of the restored object, and asks before it
// denies everything.
func TestRollbackReviews(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.past = past{{
		Ref: report.Ref{Kind: "AuthorizationPolicy", Namespace: "shop", Name: "stop"}, Change: report.Updated, Revision: "1f3a",
		Object: []byte(`{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"name":"stop","namespace":"shop"},"spec":{"action":"DENY","rules":[{}]}}`),
	}}
	s.answer = "n\n"
	const finding = "WARNING OUT0002 AuthorizationPolicy/shop/stop  revision 1f3a"
	for _, c := range []struct {
		flag   string
		code   int
		asks   bool
		exists bool
	}{{"--dry-run", 0, false, false}, {"-n=shop", 1, true, false}, {"--yes", 0, false, true}} {
		code, _, errs := s.run("rollback", "ap/stop", "-n", "shop", c.flag)
		exists := s.store("memory://").Get(model.Key{Kind: model.AuthorizationPolicy, Namespace: "shop", Name: "stop"}) != nil
		if code != c.code || !strings.Contains(errs, finding) || strings.Contains(errs, question) != c.asks || exists != c.exists {
			t.Errorf("%s: code %d, exists: %v: %s", c.flag, code, exists, errs)
		}
	}
}

// TestDiffOfTimes checks the output and the exit codes of diff between two moments.
func TestDiffOfTimes(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.past = pastEntries()
	code, out, _ := s.run("diff", "--from", "1h")
	for _, want := range []string{
		"--- workloadentry/one\t2026-05-01 03:00:00\n+++ workloadentry/one\t2026-05-01 03:01:00\n", "-  address: 10.0.0.1\n+  address: 10.0.0.2\n",
		"--- /dev/null\n+++ workloadentry/one", "+++ /dev/null\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output of diff --from 1h does not contain %q:\n%s", want, out)
		}
	}
	if code != exitFailed {
		t.Errorf("diff with differences: got exit code %d, want %d", code, exitFailed)
	}
	s.want("diff --from 3h", exitFailed, "--- mesh\t2026-05-01 03:00:00\n+++ mesh\t2026-05-01 03:01:00\n@@ -1,2 +1 @@\n-accessLogFile: /dev/stdout\n enableTracing: true\n", ofControl)
	s.want("diff --from 2h", 2, "", "outrigger: unexpected times\n")
	s.want("diff --to 2h", 2, "", "outrigger: --to needs --from: write --from TIME\n")
	s.want("diff --from 2h -f a.yaml", 2, "", "outrigger: -f and --from exclude each other: compare files with the store, or two times\n")
}

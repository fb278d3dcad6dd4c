// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

var writeCases = []testCase{
	{"Create", testCreate},
	{"CreateExisting", testCreateExisting},
	{"CreateRace", testCreateRace},
	{"Update", testUpdate},
	{"UpdateStale", testUpdateStale},
	{"UpdateMissing", testUpdateMissing},
	{"UpdateStatus", testUpdateStatus},
	{"UpdateStatusOfStructs", testUpdateStatusOfStructs},
	{"Patch", testPatch},
	{"PatchInterrupted", testPatchInterrupted},
	{"PatchWriters", testPatchWriters},
	{"Delete", testDelete},
	{"Invalid", testInvalid},
	{"UnknownKind", testUnknownKind},
	{"Cancelled", testCancelled},
	{"Keys", testKeys},
	{"Order", testOrder},
	{"WholeSeconds", testWholeSeconds},
	{"ChosenOnce", testChosenOnce},
	{"Structs", testStructs},
	{"Big", testBig},
	{"Many", testMany},
	{"Callers", testCallersKeepTheirObjects},
	{"ReadOnlyResults", testReadOnlyResults},
	{"Events", testEvents},
	{"EventsByKind", testEventsByKind},
	{"FirstLoad", testFirstLoad},
	{"FollowsManyWrites", testFollowsManyWrites},
	{"EmptyStore", testEmptyStore},
}

func testCreate(t *testing.T, s *suite) {
	l := s.start(t)
	c := workload("shop", "a", "10.0.0.1")
	c.Labels = map[string]string{"app": "a"}
	c.Annotations = map[string]string{"note": "with: colons, \"quotes\"\nand lines"}
	c.Status = istioStatus("written by nobody")
	got := l.create(c)
	if !maps.Equal(got.Labels, c.Labels) || !maps.Equal(got.Annotations, c.Annotations) || !model.SameSpec(got.Spec, c.Spec) {
		t.Errorf("created object: got labels %v, annotations %v, spec %v", got.Labels, got.Annotations, got.Spec)
	}
	if got.Status != nil {
		t.Errorf("Create wrote the status %v", got.Status)
	}
	if got.Generation != 0 && got.Generation != 1 {
		t.Errorf("generation of a new object: got %d, want 0 or 1", got.Generation)
	}
	if age := time.Since(got.Created); age < -time.Minute || age > time.Hour {
		t.Errorf("creation time: got %v, want about now", got.Created)
	}
	if list := l.List(model.WorkloadEntry, ""); len(list) != 1 || list[0].Key != c.Key {
		t.Errorf("List() = %v, want only the created object", list)
	}
	if p := l.wrong(); len(p) > 0 {
		t.Errorf("problems: got %v, want none", p)
	}
}

func testCreateExisting(t *testing.T, s *suite) {
	l := s.start(t)
	first := l.create(workload("shop", "a", "10.0.0.1"))
	_, err := l.Create(t.Context(), workload("shop", "a", "10.0.0.2"))
	want(t, "create it again", err, config.ErrExists)
	if code := config.StatusCode(err); code != 409 {
		t.Errorf("StatusCode() = %d, want 409", code)
	}
	l.create(workload("shop", "b", "10.0.0.3")) // earlier writes are visible now
	if got := l.Get(first.Key); got.ResourceVersion != first.ResourceVersion || address(got) != "10.0.0.1" {
		t.Errorf("the failed Create changed the object: %v", got.Spec)
	}
}

func testCreateRace(t *testing.T, s *suite) {
	l := s.start(t)
	var won, lost atomic.Int32
	var winner atomic.Value
	together(10, func(i int) {
		version, err := l.Create(t.Context(), workload("shop", "a", fmt.Sprintf("10.0.0.%d", i)))
		switch {
		case err == nil:
			won.Add(1)
			winner.Store([2]string{version, fmt.Sprintf("10.0.0.%d", i)})
		case errors.Is(err, config.ErrExists):
			lost.Add(1)
		default:
			t.Errorf("Create() = %v", err)
		}
	})
	if won.Load() != 1 || lost.Load() != 9 {
		t.Fatalf("concurrent creates of one key: %d succeeded and %d failed, want 1 and 9", won.Load(), lost.Load())
	}
	w := winner.Load().([2]string)
	if got := l.shows(key(model.WorkloadEntry, "shop", "a"), w[0]); address(got) != w[1] {
		t.Errorf("address: got %s, want that of the successful writer, %s", address(got), w[1])
	}
}

// together runs n functions concurrently and waits for them.
func together(n int, run func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { run(i) })
	}
	all.Wait()
}

func testUpdate(t *testing.T, s *suite) {
	l := s.start(t)
	first := workload("shop", "a", "10.0.0.1")
	first.Labels = map[string]string{"app": "a", "old": "yes"}
	first = l.create(first)

	next := readdress(first, "10.0.0.2")
	next.Labels = map[string]string{"app": "b"}
	next.Annotations = map[string]string{"new": "yes"}
	next.Created, next.UID, next.Generation = time.Unix(1, 0), "mine", 77
	second := l.update(next)
	if second.ResourceVersion == first.ResourceVersion {
		t.Error("the resource version did not change")
	}
	if address(second) != "10.0.0.2" || !maps.Equal(second.Labels, next.Labels) || !maps.Equal(second.Annotations, next.Annotations) {
		t.Errorf("updated object: got labels %v, annotations %v, spec %v", second.Labels, second.Annotations, second.Spec)
	}
	if !second.Created.Equal(first.Created) || second.UID != first.UID {
		t.Errorf("an update changed the creation time to %v or the UID to %q", second.Created, second.UID)
	}
	if second.Generation != first.Generation+1 && second.Generation != 0 {
		t.Errorf("generation after an update: got %d, before %d", second.Generation, first.Generation)
	}

	// Labels are not part of the spec, so they do not change the generation.
	relabelled := second.Clone()
	relabelled.Labels = nil
	third := l.update(relabelled)
	if third.Generation != second.Generation || len(third.Labels) > 0 || third.ResourceVersion == second.ResourceVersion {
		t.Errorf("after removing labels: got generation %d, before %d; labels %v", third.Generation, second.Generation, third.Labels)
	}

	// An update without a change must succeed.
	version, err := l.Update(t.Context(), third.Clone())
	if err != nil {
		t.Fatalf("Update without a change = %v, want nil", err)
	}
	l.shows(first.Key, version)

	// A write without a version always succeeds.
	blind := workload("shop", "a", "10.0.0.4")
	if got := l.update(blind); address(got) != "10.0.0.4" {
		t.Errorf("after an update without a version: got spec %v", got.Spec)
	}
}

func testUpdateStale(t *testing.T, s *suite) {
	l := s.start(t)
	first := l.create(workload("shop", "a", "10.0.0.1"))
	second := l.update(readdress(first, "10.0.0.2"))
	_, err := l.Update(t.Context(), readdress(first, "10.0.0.3"))
	want(t, "update what changed meanwhile", err, config.ErrConflict)
	if code := config.StatusCode(err); code != 409 {
		t.Errorf("StatusCode() = %d, want 409", code)
	}
	wrong := readdress(second, "10.0.0.3")
	wrong.ResourceVersion = "never-given"
	_, err = l.Update(t.Context(), wrong)
	want(t, "update with a version that never was", err, config.ErrConflict)
	if got := l.Get(first.Key); got.ResourceVersion != second.ResourceVersion || address(got) != "10.0.0.2" {
		t.Errorf("a failed write changed the object: %v", got.Spec)
	}

	// A version of a deleted object is also outdated if the content differs.
	if err := l.Delete(t.Context(), first.Key, ""); err != nil {
		t.Fatal(err)
	}
	l.gone(first.Key)
	l.create(workload("shop", "a", "10.0.0.9"))
	_, err = l.Update(t.Context(), readdress(second, "10.0.0.3"))
	want(t, "update an object of a former life", err, config.ErrConflict)
}

func testUpdateMissing(t *testing.T, s *suite) {
	l := s.start(t)
	missing := workload("shop", "none", "10.0.0.1")
	_, err := l.Update(t.Context(), missing)
	want(t, "update", err, config.ErrNotFound)
	missing.Status = istioStatus("x")
	_, err = l.UpdateStatus(t.Context(), missing)
	want(t, "update the status", err, config.ErrNotFound)
	_, err = l.Patch(t.Context(), missing.Key, func(*model.Config) error { return nil })
	want(t, "patch", err, config.ErrNotFound)
	err = l.Delete(t.Context(), missing.Key, "")
	want(t, "delete", err, config.ErrNotFound)
	if code := config.StatusCode(err); code != 404 {
		t.Errorf("StatusCode() = %d, want 404", code)
	}
	if got := l.Get(missing.Key); got != nil {
		t.Errorf("Get() of a missing object = %v, want nil", got)
	}
}

func testUpdateStatus(t *testing.T, s *suite) {
	l := s.start(t)
	first := l.create(workload("shop", "a", "10.0.0.1"))
	said := readdress(first, "10.0.0.99")
	said.Labels = map[string]string{"not": "written"}
	said.Status = istioStatus("one")
	version, err := l.UpdateStatus(t.Context(), said)
	if err != nil {
		t.Fatal(err)
	}
	second := l.shows(first.Key, version)
	if reason(second) != "one" || second.ResourceVersion == first.ResourceVersion {
		t.Errorf("after UpdateStatus: got status %v, version before %s, after %s", second.Status, first.ResourceVersion, second.ResourceVersion)
	}
	if address(second) != "10.0.0.1" || len(second.Labels) > 0 || second.Generation != first.Generation {
		t.Errorf("UpdateStatus changed more than the status: spec %v, labels %v, generation %d", second.Spec, second.Labels, second.Generation)
	}

	// An update of the spec must keep the status.
	next := readdress(second, "10.0.0.2")
	next.Status = nil
	third := l.update(next)
	if reason(third) != "one" || address(third) != "10.0.0.2" {
		t.Errorf("status after Update: got %v", third.Status)
	}
	version, err = l.Patch(t.Context(), first.Key, func(c *model.Config) error {
		c.Status = istioStatus("patched")
		c.Labels = map[string]string{"patched": "yes"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	fourth := l.shows(first.Key, version)
	if reason(fourth) != "one" || fourth.Labels["patched"] != "yes" {
		t.Errorf("after Patch: got status %v, labels %v", fourth.Status, fourth.Labels)
	}

	_, err = l.UpdateStatus(t.Context(), second)
	want(t, "a stale status", err, config.ErrConflict)
	l.heard(first.Key, fourth.ResourceVersion)

	// A new object with the same name has no status, and a nil status removes it.
	again := fourth.Clone()
	again.Status = nil
	if version, err = l.UpdateStatus(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if got := l.shows(first.Key, version); got.Status != nil {
		t.Errorf("status: got %v, want none", got.Status)
	}
}

func testUpdateStatusOfStructs(t *testing.T, s *suite) {
	l := s.start(t)
	first := l.create(httpRoute("shop", "a", "shop.example"))
	said := first.Clone()
	said.Status = routeStatus("Accepted")
	version, err := l.UpdateStatus(t.Context(), said)
	if err != nil {
		t.Fatal(err)
	}
	got := l.shows(first.Key, version)
	status, ok := got.Status.(*gatewayv1.HTTPRouteStatus)
	if !ok || len(status.Parents) != 1 || status.Parents[0].Conditions[0].Reason != "Accepted" {
		t.Errorf("status: got %v", got.Status)
	}
	if err := l.Delete(t.Context(), first.Key, version); err != nil {
		t.Fatal(err)
	}
	l.gone(first.Key)
	if got := l.create(httpRoute("shop", "a", "new.example")); got.Status != nil {
		t.Errorf("a new object has the status of the deleted one: %v", got.Status)
	}
	wrong := l.Get(first.Key).Clone()
	wrong.Status = istioStatus("of another kind")
	_, err = l.UpdateStatus(t.Context(), wrong)
	want(t, "a status of another kind's type", err, config.ErrInvalid)
}

func testInvalid(t *testing.T, s *suite) {
	l := s.start(t)
	bad := workload("shop", "a", "no address!")
	check := func(what string, err error) {
		t.Helper()
		want(t, what, err, config.ErrInvalid)
		var invalid *config.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Faults) == 0 || invalid.Key.Kind == "" {
			t.Errorf("%s: got error %v, want an InvalidError with the faults", what, err)
		}
		if code := config.StatusCode(err); code != 422 {
			t.Errorf("StatusCode() = %d, want 422", code)
		}
	}
	_, err := l.Create(t.Context(), bad)
	check("create", err)
	_, err = l.Create(t.Context(), workload("shop", "Not A Name", "10.0.0.1"))
	check("create with a bad name", err)
	_, err = l.Create(t.Context(), workload("shop", "../../up", "10.0.0.1"))
	check("create with a path for a name", err)
	_, err = l.Create(t.Context(), workload("..", "up", "10.0.0.1"))
	check("create with a path for a namespace", err)
	_, err = l.Create(t.Context(), &model.Config{Key: bad.Key, Spec: httpRoute("", "").Spec})
	check("create with the spec of another kind", err)
	_, err = l.Create(t.Context(), &model.Config{Key: key(model.GatewayClass, "shop", "a"), Spec: gatewayClass("a").Spec})
	check("create a cluster-scoped object with a namespace", err)

	first := l.create(workload("shop", "a", "10.0.0.1"))
	_, err = l.Update(t.Context(), readdress(first, "no address!"))
	check("update", err)
	_, err = l.Patch(t.Context(), first.Key, func(c *model.Config) error {
		c.Spec = readdress(c, "no address!").Spec
		return nil
	})
	check("patch", err)
	if all := l.List(model.WorkloadEntry, ""); len(all) != 1 || address(all[0]) != "10.0.0.1" {
		t.Errorf("objects: got %v, want only the valid one", all)
	}
	if p := l.wrong(); len(p) > 0 {
		t.Errorf("problems: got %v, want none", p)
	}
}

func testUnknownKind(t *testing.T, s *suite) {
	l := s.start(t)
	for _, kind := range []model.Kind{"Pod", model.MeshConfigKind, ""} {
		c := workload("shop", "a", "10.0.0.1")
		c.Kind = kind
		_, err := l.Create(t.Context(), c)
		want(t, "create", err, config.ErrNoKind)
		_, err = l.Update(t.Context(), c)
		want(t, "update", err, config.ErrNoKind)
		if code := config.StatusCode(err); code != 404 {
			t.Errorf("StatusCode() = %d, want 404", code)
		}
		if got := l.Get(c.Key); got != nil {
			t.Errorf("Get() = %v, want nil", got)
		}
		if got := l.List(kind, ""); len(got) > 0 {
			t.Errorf("List() = %v, want none", got)
		}
	}
}

func testCancelled(t *testing.T, s *suite) {
	l := s.start(t)
	first := l.create(workload("shop", "a", "10.0.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Create(ctx, workload("shop", "b", "10.0.0.2"))
	want(t, "create", err, context.Canceled)
	_, err = l.Update(ctx, readdress(first, "10.0.0.2"))
	want(t, "update", err, context.Canceled)
	said := first.Clone()
	said.Status = istioStatus("x")
	_, err = l.UpdateStatus(ctx, said)
	want(t, "update the status", err, context.Canceled)
	_, err = l.Patch(ctx, first.Key, func(c *model.Config) error { c.Labels = map[string]string{"a": "b"}; return nil })
	want(t, "patch", err, context.Canceled)
	want(t, "delete", l.Delete(ctx, first.Key, ""), context.Canceled)
	l.create(workload("shop", "c", "10.0.0.3")) // earlier writes are visible now
	if got := l.Get(first.Key); got == nil || got.ResourceVersion != first.ResourceVersion {
		t.Errorf("a write with a canceled context was performed: %v", got)
	}
	if got := l.Get(key(model.WorkloadEntry, "shop", "b")); got != nil {
		t.Errorf("a write with a canceled context was performed: %v", got)
	}
}

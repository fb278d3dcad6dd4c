// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func testPatch(t *testing.T, s *suite) {
	l := s.start(t)
	first := workload("shop", "a", "10.0.0.1")
	first.Labels = map[string]string{"keep": "me"}
	first = l.create(first)
	version, err := l.Patch(t.Context(), first.Key, func(c *model.Config) error {
		c.Labels["more"] = "yes"
		c.Spec = readdress(c, "10.0.0.2").Spec
		c.Name, c.Namespace, c.ResourceVersion = "other", "other", "other"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	second := l.shows(first.Key, version)
	if second.Labels["keep"] != "me" || second.Labels["more"] != "yes" || address(second) != "10.0.0.2" {
		t.Errorf("after Patch: got labels %v, spec %v", second.Labels, second.Spec)
	}
	if len(first.Labels) != 1 || address(first) != "10.0.0.1" {
		t.Error("Patch modified the shared object")
	}
	if got := l.Get(key(model.WorkloadEntry, "other", "other")); got != nil {
		t.Errorf("Patch moved the object: %v", got)
	}

	no := errors.New("canceled by the change")
	_, err = l.Patch(t.Context(), first.Key, func(c *model.Config) error {
		c.Labels = nil
		return no
	})
	want(t, "a change that fails", err, no)
	l.create(workload("shop", "b", "10.0.0.3")) // earlier writes are visible now
	if got := l.Get(first.Key); got.ResourceVersion != second.ResourceVersion {
		t.Errorf("a failed change was written: labels %v", got.Labels)
	}
}

// testPatchInterrupted writes the object during a Patch. The change must be applied again, to the
// newer version.
func testPatchInterrupted(t *testing.T, s *suite) {
	l := s.start(t)
	first := l.create(counted("shop", "a"))
	calls := 0
	version, err := l.Patch(t.Context(), first.Key, func(c *model.Config) error {
		if calls++; calls == 1 {
			other := c.Clone()
			other.Labels = map[string]string{"other": "yes"}
			l.update(other)
		}
		return count(c)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.shows(first.Key, version); calls < 2 || got.Annotations[counter] != "1" || got.Labels["other"] != "yes" {
		t.Errorf("after %d calls: got annotations %v, labels %v; want at least 2 calls and both changes", calls, got.Annotations, got.Labels)
	}
}

// count increments the counter of an object.
func count(c *model.Config) error {
	n, err := strconv.Atoi(c.Annotations[counter])
	if err != nil {
		return err
	}
	c.Annotations[counter] = strconv.Itoa(n + 1)
	return nil
}

func counted(namespace, name string) *model.Config {
	c := workload(namespace, name, "10.0.0.1")
	c.Annotations = map[string]string{counter: "0"}
	return c
}

// testPatchWriters increments the counter of one object with 100 concurrent writers. Half of them
// use Patch; the others read, change and write the object themselves.
func testPatchWriters(t *testing.T, s *suite) {
	const writers = 100
	l := s.start(t)
	first := l.create(counted("shop", "a"))
	start := time.Now()
	together(writers, func(i int) {
		var err error
		if i%2 == 0 {
			_, err = l.Patch(t.Context(), first.Key, count)
		} else {
			err = config.RetryConflict(t.Context(), func() error {
				next := l.Get(first.Key).Clone()
				if err := count(next); err != nil {
					return err
				}
				_, err := l.Update(t.Context(), next)
				return err
			})
		}
		if err != nil {
			t.Errorf("writer %d: %v", i, err)
		}
	})
	t.Logf("%d writers of one object took %v", writers, time.Since(start))
	l.until("all writers are counted", func() bool {
		return l.Get(first.Key).Annotations[counter] == strconv.Itoa(writers)
	})
}

func testDelete(t *testing.T, s *suite) {
	l := s.start(t)
	first := l.create(workload("shop", "a", "10.0.0.1"))
	other := l.create(workload("other", "a", "10.0.0.1"))
	second := l.update(readdress(first, "10.0.0.2"))
	want(t, "delete an object that was changed", l.Delete(t.Context(), first.Key, first.ResourceVersion), config.ErrConflict)
	if got := l.Get(first.Key); got == nil {
		t.Fatal("a failed Delete removed the object")
	}
	if err := l.Delete(t.Context(), first.Key, second.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	l.gone(first.Key)
	l.heard(first.Key, "")
	if list := l.List(model.WorkloadEntry, ""); len(list) != 1 || list[0].Key != other.Key {
		t.Errorf("List() = %v, want only the other object", list)
	}
	want(t, "delete it twice", l.Delete(t.Context(), first.Key, ""), config.ErrNotFound)
	if err := l.Delete(t.Context(), other.Key, ""); err != nil {
		t.Fatal(err)
	}
	l.gone(other.Key)
	again := l.create(workload("shop", "a", "10.0.0.3"))
	if again.UID != "" && again.UID == first.UID {
		t.Errorf("a new object has the same UID %q as the deleted one", again.UID)
	}
}

func testKeys(t *testing.T, s *suite) {
	l := s.start(t)
	for _, c := range []*model.Config{
		workload("shop", "same", "10.0.0.1"),
		workload("other", "same", "10.0.0.2"),
		workload("shop", "other.same", "10.0.0.3"),
		httpRoute("shop", "same", "shop.example"),
		gatewayClass("same"),
		istioGateway("shop", "same"),
		kubernetesGateway("shop", "same"),
	} {
		l.create(c)
	}
	for _, c := range []struct {
		kind      model.Kind
		namespace string
		n         int
	}{
		{model.WorkloadEntry, "", 3},
		{model.WorkloadEntry, "shop", 2},
		{model.WorkloadEntry, "other", 1},
		{model.WorkloadEntry, "none", 0},
		{model.HTTPRoute, "", 1},
		{model.GatewayClass, "", 1},
		{model.Gateway, "shop", 1},
		{model.KubernetesGateway, "shop", 1},
		{model.VirtualService, "", 0},
	} {
		list := l.List(c.kind, c.namespace)
		if len(list) != c.n {
			t.Errorf("%s in %q: %d objects, want %d", c.kind, c.namespace, len(list), c.n)
		}
		for _, o := range list {
			if o.Kind != c.kind || c.namespace != "" && o.Namespace != c.namespace {
				t.Errorf("%s in %q: the list contains %s", c.kind, c.namespace, o.Key)
			}
		}
	}
	if _, ok := l.Get(key(model.KubernetesGateway, "shop", "same")).Spec.(*gatewayv1.GatewaySpec); !ok {
		t.Error("the two kinds of Gateway are confused")
	}
	if err := l.Delete(t.Context(), key(model.Gateway, "shop", "same"), ""); err != nil {
		t.Fatal(err)
	}
	l.gone(key(model.Gateway, "shop", "same"))
	if l.Get(key(model.KubernetesGateway, "shop", "same")) == nil || l.Get(key(model.GatewayClass, "", "same")) == nil {
		t.Error("Delete removed an object of another kind")
	}
}

// testOrder checks the canonical order: age, then name, then namespace. A store may choose creation
// times itself.
func testOrder(t *testing.T, s *suite) {
	l := s.start(t)
	at := time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, name := range []string{"c", "a", "b"} {
		c := workload("shop", name, "10.0.0.1")
		c.Created = at.Add(time.Duration(i) * time.Hour)
		l.create(c)
	}
	twin := workload("other", "b", "10.0.0.1")
	twin.Created = at.Add(2 * time.Hour)
	l.create(twin)
	list := l.List(model.WorkloadEntry, "")
	if len(list) != 4 || !slices.IsSortedFunc(list, model.Older) {
		t.Errorf("the list is not in canonical order: %v", list)
	}
	if list[0].Created.Equal(at) { // the store keeps the creation times of writers
		var names string
		for _, c := range list {
			names += " " + c.Namespace + "/" + c.Name
		}
		if names != " shop/c shop/a other/b shop/b" {
			t.Errorf("got order%s", names)
		}
	}
	// An update must not change the age.
	first := list[0]
	updated := l.update(readdress(first, "10.0.0.2"))
	if !updated.Created.Equal(first.Created) || l.List(model.WorkloadEntry, "")[0].Key != first.Key {
		t.Errorf("creation time after an update: got %v, before %v", updated.Created, first.Created)
	}
}

func testStructs(t *testing.T, s *suite) {
	l := s.start(t)
	c := httpRoute("shop", "a", "shop.example", "www.shop.example")
	first := l.create(c)
	spec, ok := first.Spec.(*gatewayv1.HTTPRouteSpec)
	if !ok || len(spec.Hostnames) != 2 || len(spec.Rules) != 1 || *spec.Rules[0].BackendRefs[0].Port != 8080 {
		t.Fatalf("spec: got %v", first.Spec)
	}
	version, err := l.Patch(t.Context(), c.Key, func(c *model.Config) error {
		c.Spec.(*gatewayv1.HTTPRouteSpec).Hostnames = []gatewayv1.Hostname{"new.example"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	second := l.shows(c.Key, version)
	if got := second.Spec.(*gatewayv1.HTTPRouteSpec).Hostnames; len(got) != 1 || got[0] != "new.example" {
		t.Errorf("hostnames: got %v", got)
	}
	if len(spec.Hostnames) != 2 {
		t.Error("the change modified the shared object")
	}
	l.heard(c.Key, version)
}

func testBig(t *testing.T, s *suite) {
	l := s.start(t)
	c := big("shop", "a", 300_000)
	got := l.create(c)
	if !model.SameSpec(got.Spec, c.Spec) {
		t.Error("a large object differs after it was stored")
	}
	next := got.Clone()
	next.Labels = map[string]string{"more": "yes"}
	if got = l.update(next); !model.SameSpec(got.Spec, c.Spec) {
		t.Error("the spec of a large object changed with its labels")
	}
}

func testMany(t *testing.T, s *suite) {
	const writers, each = 8, 125
	l := s.start(t)
	start := time.Now()
	together(writers, func(w int) {
		for i := range each {
			c := workload(fmt.Sprintf("ns%d", w), fmt.Sprintf("w%d", i), fmt.Sprintf("10.0.%d.%d", w, i))
			if _, err := l.Create(t.Context(), c); err != nil {
				t.Errorf("Create(%s) = %v", c.Key, err)
				return
			}
		}
	})
	t.Logf("%d objects were created in %v", writers*each, time.Since(start))
	l.until("all objects are listed", func() bool { return len(l.List(model.WorkloadEntry, "")) == writers*each })
	for w := range writers {
		if n := len(l.List(model.WorkloadEntry, fmt.Sprintf("ns%d", w))); n != each {
			t.Errorf("namespace %d contains %d objects, want %d", w, n, each)
		}
	}
	if got := l.Get(key(model.WorkloadEntry, "ns3", "w77")); got == nil || address(got) != "10.0.3.77" {
		t.Errorf("Get() = %v", got)
	}
}

// testCallersKeepTheirObjects modifies an object after it was stored.
func testCallersKeepTheirObjects(t *testing.T, s *suite) {
	l := s.start(t)
	mine := workload("shop", "a", "10.0.0.1")
	mine.Labels = map[string]string{"app": "a"}
	before := mine.Clone()
	version, err := l.Create(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	if !config.SameContent(mine, before) || mine.ResourceVersion != "" || mine.Generation != 0 || !mine.Created.IsZero() {
		t.Errorf("Create modified the caller's object: %+v", mine)
	}
	mine.Labels["app"] = "changed"
	mine.Spec = readdress(mine, "10.0.0.2").Spec
	stored := l.shows(mine.Key, version)
	next := stored.Clone()
	next.Labels["app"] = "b"
	if version, err = l.Update(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	next.Labels["app"] = "changed"
	next.Status = istioStatus("one")
	next.ResourceVersion = version
	if version, err = l.UpdateStatus(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	next.Status = istioStatus("changed")
	if got := l.shows(mine.Key, version); got.Labels["app"] != "b" || address(got) != "10.0.0.1" || reason(got) != "one" {
		t.Errorf("the store shares the caller's object: %v, %v, %v", got.Labels, got.Spec, got.Status)
	}
}

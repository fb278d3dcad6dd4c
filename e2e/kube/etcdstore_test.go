// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/types/known/structpb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/storetest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The store in etcd, with the real etcd:
//
//   - it passes the suite of all stores (TestEtcdStore);
//   - 10,000 objects are loaded in 3 s (TestEtcdStoreLoad);
//   - acknowledged writes survive a killed writer (TestEtcdStoreKilledWriter);
//   - invalid values of other writers do no harm (TestEtcdStoreBadValues);
//   - an object that is too large is refused (TestEtcdStoreTooLarge);
//   - etcd is killed, disconnected, paused, compacted or replaced (etcdstore_fault_test.go);
//   - TLS and users (etcdstore_secure_test.go).

func TestEtcdStore(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	var last atomic.Int64
	storetest.Run(t, func(t *testing.T) config.Store {
		return openEtcdStore(t, etcdURL(e, "", fmt.Sprintf("/suite/%d", last.Add(1)))).Store
	}, storetest.Options{
		Reopen: func(t *testing.T, s config.Store) config.Store { return openEtcdStore(t, s.Name()).Store },
	})
}

func TestEtcdStoreLoad(t *testing.T) {
	const objects, writers, most = 10_000, 16, 3 * time.Second
	e := NewEtcd(t, EtcdOptions{})
	writer := openEtcdStore(t, etcdURL(e, "", ""))
	start := time.Now()
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := w; i < objects; i += writers {
				c := etcdEntry(fmt.Sprintf("w%d", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250))
				c.Labels = map[string]string{"app": fmt.Sprintf("app-%d", i), "version": "v1"}
				if _, err := writer.Create(t.Context(), c); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d objects were written in %v", objects, time.Since(start))
	start = time.Now()
	s := openEtcdStore(t, etcdURL(e, "", ""))
	s.run()
	<-s.Synced()
	took := time.Since(start)
	t.Logf("%d objects were loaded in %v", objects, took)
	if n := len(s.List(model.WorkloadEntry, "")); n != objects {
		t.Errorf("%d objects are there, want %d", n, objects)
	}
	if took > most {
		t.Errorf("that is more than %v", most)
	}
}

const writerEnv = "ETCDSTORE_TEST_WRITER"

// TestEtcdStoreWriter is the process that TestEtcdStoreKilledWriter kills.
func TestEtcdStoreWriter(t *testing.T) {
	address := os.Getenv(writerEnv)
	if address == "" {
		t.Skip("it is a part of TestEtcdStoreKilledWriter, which runs it as a process of its own")
	}
	s := openEtcdStore(t, address)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := w; i < 5000; i += 8 {
				name := fmt.Sprintf("w%d", i)
				version, err := s.Create(t.Context(), etcdEntry(name, "10.0.0.1"))
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Printf("%s %s\n", name, version)
			}
		})
	}
	all.Wait()
}

func TestEtcdStoreKilledWriter(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	watcher := startEtcdStore(t, etcdURL(e, "", ""))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEtcdStoreWriter$", "-test.v")
	cmd.Env = append(os.Environ(), writerEnv+"="+etcdURL(e, "", ""))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acknowledged := map[string]string{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var name, version string
		if n, _ := fmt.Sscanf(lines.Text(), "w%s %s", &name, &version); n == 2 {
			acknowledged["w"+name] = version
		}
		if len(acknowledged) == 2500 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the writer exited unexpectedly")
	}
	if n := len(acknowledged); n < 2500 || n >= 5000 {
		t.Fatalf("the writer acknowledged %d of 5000 writes before it was killed", n)
	}
	s := startEtcdStore(t, etcdURL(e, "", ""))
	there := map[model.Key]string{}
	for _, c := range s.List(model.WorkloadEntry, "") {
		there[c.Key] = c.ResourceVersion
		if name := c.Name; acknowledged[name] != "" && acknowledged[name] != c.ResourceVersion {
			t.Errorf("%s has the version %s, acknowledged was %s", name, c.ResourceVersion, acknowledged[name])
		}
		delete(acknowledged, c.Name)
	}
	if len(acknowledged) > 0 {
		t.Errorf("%d acknowledged writes are lost", len(acknowledged))
	}
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("problems: %v", p)
	}
	t.Logf("%d objects are there after the writer was killed", len(there))
	watcher.agrees(there)
}

func TestEtcdStoreBadValues(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	raw := etcdClient(t, e)
	s := startEtcdStore(t, etcdURL(e, "", "/mesh"))
	put := func(key, value string) {
		t.Helper()
		if _, err := raw.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	problems := func(n int, words ...string) {
		t.Helper()
		s.until(fmt.Sprintf("there are %d problems", n), func() bool { return len(s.Problems()) == n })
		all := fmt.Sprint(s.Problems())
		for _, word := range words {
			if !strings.Contains(all, word) {
				t.Errorf("the problems are %s, want the word %q", all, word)
			}
		}
	}
	a, b := etcdEntry("a", "10.0.0.1"), etcdEntry("b", "10.0.0.2")
	version := s.must(s.Create(t.Context(), a))
	s.must(s.Create(t.Context(), b))

	put(etcdKey("/mesh", "a"), "{")
	put(etcdKey("/mesh", "c"), "no JSON")
	put(etcdKey("/mesh", "d"), `{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"other","namespace":"shop"},"spec":{}}`)
	put("/mesh/nothing", "x")
	put("/mesh/example.com/things/shop/a", "x")
	problems(5, "the last good version stays in force", "other", "group/plural/namespace/name", "things.example.com", etcdKey("/mesh", "c"))
	restarted := startEtcdStore(t, etcdURL(e, "", "/mesh"))
	for _, store := range []*etcdStore{s, restarted} {
		if c := store.Get(a.Key); c == nil || c.ResourceVersion != version {
			t.Errorf("the object with the invalid value is %v", c)
		}
		if n := len(store.List(model.WorkloadEntry, "")); n != 2 {
			t.Errorf("%d objects are there, want 2", n)
		}
		if n := len(store.Problems()); n != 5 {
			t.Errorf("problems: %v", store.Problems())
		}
	}

	// Unreadable objects can be removed.
	next := s.Get(a.Key).Clone()
	if _, err := s.Update(t.Context(), next); !errors.Is(err, config.ErrMalformed) {
		t.Errorf("update with the last good version: %v", err)
	}
	if err := s.Delete(t.Context(), a.Key, ""); err != nil {
		t.Error(err)
	}
	s.must(s.Create(t.Context(), a))
	problems(4)
	c := etcdEntry("c", "10.0.0.3")
	if _, err := s.Create(t.Context(), c); !errors.Is(err, config.ErrExists) {
		t.Errorf("create over what cannot be read: %v", err)
	}
	if _, err := s.Update(t.Context(), c); err == nil || !strings.Contains(err.Error(), "delete it and create it again") {
		t.Errorf("update of what cannot be read: %v", err)
	}
	if err := s.Delete(t.Context(), c.Key, ""); err != nil {
		t.Error(err)
	}
	s.must(s.Create(t.Context(), c))
	problems(3)

	// Readable but invalid objects are not in force either, and can be corrected by a write without
	// a version.
	invalid := strings.Replace(etcdValue(t, raw, "b"), "10.0.0.2", "no address!", 1)
	put(etcdKey("/mesh", "b"), invalid)
	problems(4, "spec.address", "the last good version stays in force")
	good := s.Get(b.Key)
	if good == nil || good.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress() != "10.0.0.2" {
		t.Errorf("in force is %v", good)
	}
	if _, err := s.Update(t.Context(), good.Clone()); !errors.Is(err, config.ErrMalformed) {
		t.Errorf("update with the last good version: %v", err)
	}
	told := good.Clone()
	told.Status = &metav1alpha1.IstioStatus{Conditions: []*metav1alpha1.IstioCondition{{Type: "PassedAnalysis", Status: "False"}}}
	s.must(s.UpdateStatus(t.Context(), told))
	if value := etcdValue(t, raw, "b"); !strings.Contains(value, "no address!") || !strings.Contains(value, "PassedAnalysis") {
		t.Errorf("with the status, etcd holds %s", value)
	}
	s.must(s.Patch(t.Context(), b.Key, func(c *model.Config) error {
		c.Spec.(*networkingv1alpha3.WorkloadEntry).Address = "10.0.0.4"
		return nil
	}))
	problems(3)
	if _, err := raw.Delete(t.Context(), "/mesh/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	problems(0)
	s.agrees(nil)
	log := s.log.String()
	if n := strings.Count(log, "a problem with a configuration object is resolved"); n < 6 {
		t.Errorf("the log reports %d resolved problems, want 6:\n%s", n, log)
	}
}

// etcdValue returns the value of an object in etcd.
func etcdValue(t *testing.T, raw *clientv3.Client, name string) string {
	t.Helper()
	answer, err := raw.Get(t.Context(), etcdKey("/mesh", name))
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	return string(answer.Kvs[0].Value)
}

func TestEtcdStoreTooLarge(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	s := openEtcdStore(t, etcdURL(e, "", ""))
	for _, size := range []int{1 << 20, 2 << 20, 8 << 20} {
		c := &model.Config{
			Key: model.Key{Kind: model.WasmPlugin, Namespace: "shop", Name: "large"},
			Spec: &extensionsv1alpha1.WasmPlugin{Url: "oci://registry.example/filter:1", PluginConfig: &structpb.Struct{
				Fields: map[string]*structpb.Value{"rules": structpb.NewStringValue(strings.Repeat("x", size))},
			}},
		}
		_, err := s.Create(t.Context(), c)
		if size == 1<<20 {
			if err != nil || !model.SameSpec(s.Get(c.Key).Spec, c.Spec) {
				t.Errorf("an object of %d bytes: %v", size, err)
			}
			if err := s.Delete(t.Context(), c.Key, ""); err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "--max-request-bytes") || len(err.Error()) > 500 {
			t.Errorf("an object of %d bytes: %v", size, err)
		}
	}
}

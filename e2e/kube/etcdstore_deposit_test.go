// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

// TestEtcdStoreDeposits takes values that are read once, by two control planes that share etcd: one
// of many concurrent readers gets each value, and etcd removes what is too old.
func TestEtcdStoreDeposits(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	var stores [2]config.Depository
	for i := range stores {
		if stores[i] = config.DepositoryOf(openEtcdStore(t, etcdURL(e, "", "/deposits")).Store); stores[i] == nil {
			t.Fatal("the store in etcd is no depository")
		}
	}
	if err := stores[0].Deposit(t.Context(), "a", []byte("value"), time.Hour); err != nil {
		t.Fatal(err)
	}
	var got atomic.Int64
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			value, err := stores[i%2].Withdraw(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			if string(value) == "value" {
				got.Add(1)
			}
		})
	}
	all.Wait()
	if got.Load() != 1 {
		t.Errorf("%d readers got the value, want 1", got.Load())
	}
	if err := stores[0].Deposit(t.Context(), "b", []byte("value"), time.Second); err != nil {
		t.Fatal(err)
	}
	client := etcdClient(t, e)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		left, err := client.Get(t.Context(), "/deposits/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if left.Count == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d values are left after their life", left.Count)
		}
	}
	for _, name := range []string{"", "a/b"} {
		if err := stores[0].Deposit(t.Context(), name, nil, time.Hour); err == nil {
			t.Errorf("Deposit(%q) succeeds", name)
		}
	}
	if value, err := stores[1].Withdraw(t.Context(), "never"); value != nil || err != nil {
		t.Errorf("Withdraw of nothing = %q, %v", value, err)
	}
}

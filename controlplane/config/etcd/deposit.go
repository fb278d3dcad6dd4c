// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

var _ config.Depository = (*Store)(nil)

// depositPath returns the key of a deposit.
func (s *Store) depositPath(name string) (string, error) {
	if name == "" || strings.Contains(name, "/") {
		return "", errors.New("deposit: it needs a name without slashes")
	}
	return s.conn.prefix + ownDirectory + "deposits/" + name, nil
}

// Deposit implements [config.Depository] by a key with a lease.
func (s *Store) Deposit(ctx context.Context, name string, value []byte, life time.Duration) error {
	path, err := s.depositPath(name)
	if err != nil {
		return err
	}
	return s.conn.request(ctx, true, func(ctx context.Context, client *clientv3.Client) error {
		there, err := client.Get(ctx, s.conn.prefix+ownDirectory+"deposits/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		if there.Count >= config.MaxDeposits {
			return fmt.Errorf("%w: there are %d in etcd", config.ErrFull, there.Count)
		}
		lease, err := client.Grant(ctx, int64((life+time.Second-1)/time.Second))
		if err != nil {
			return err
		}
		_, err = client.Put(ctx, path, string(value), clientv3.WithLease(lease.ID))
		return err
	})
}

// Withdraw implements [config.Depository]. Of several concurrent calls one gets the value.
func (s *Store) Withdraw(ctx context.Context, name string) (value []byte, err error) {
	path, err := s.depositPath(name)
	if err != nil {
		return nil, err
	}
	err = s.conn.request(ctx, true, func(ctx context.Context, client *clientv3.Client) error {
		deleted, err := client.Delete(ctx, path, clientv3.WithPrevKV())
		if err == nil && len(deleted.PrevKvs) == 1 {
			value = deleted.PrevKvs[0].Value
		}
		return err
	})
	return value, err
}

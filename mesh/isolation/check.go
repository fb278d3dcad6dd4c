// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUnavailable is wrapped by the errors of Check.
var ErrUnavailable = errors.New("network namespaces are not available")

// Check makes a network with one workload and enters it, and returns why that is not possible.
func Check(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "outrigger-check-")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := check(ctx, dir); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

func check(ctx context.Context, dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("they need root")
	}
	for _, id := range []int{firstID, lastID, nobody} {
		if err := os.Chown(dir, id, id); errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("this user namespace has no user %d", id)
		} else if err != nil {
			return err
		}
	}
	outside := netip.MustParsePrefix("127.1.0.0/24")
	n, err := New(ctx, Config{Outside: outside, Dir: dir, Workloads: map[string]netip.Addr{"check": outside.Addr().Next().Next()}})
	if err != nil {
		return err
	}
	defer n.Close()
	place, err := n.AppPlace("check", Root())
	if err != nil {
		return err
	}
	return onThread(place.Enter)
}

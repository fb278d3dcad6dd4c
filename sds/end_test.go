// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestEnd renews for three lifetimes, in which the end is that of the newest certificate, and stops
// the authority: the certificate is in use until that end and not after it.
func TestEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		w := newWorkload(t, a, nil)
		if end := w.End(); !end.IsZero() {
			t.Errorf("without a certificate the end is %s", end)
		}
		run(t, w)
		for range 3 * 24 {
			synctest.Wait()
			if end, leaf := w.End(), w.Current().NotAfter; !end.Equal(leaf) || time.Until(end) < 8*time.Hour {
				t.Fatalf("the end is %s, that of the certificate %s", end, leaf)
			}
			time.Sleep(time.Hour)
		}
		a.set(errors.New("away"), 0)
		synctest.Wait()
		end := w.End()
		time.Sleep(time.Until(end) - 2*time.Second)
		synctest.Wait()
		if w.Certificate() == nil || !w.End().Equal(end) {
			t.Errorf("2 s before %s the certificate has expired", end)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if w.Certificate() != nil || !w.End().Equal(end) {
			t.Errorf("2 s after %s the certificate has not expired", end)
		}
		if end := w.RevocationEnd(); !end.IsZero() {
			t.Errorf("without a revocation list its end is %s", end)
		}
	})
}

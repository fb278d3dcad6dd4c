// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"
)

// silent is a stream whose caller sends nothing.
type silent struct {
	grpc.ServerStream
	ctx context.Context
}

func (s silent) RecvMsg(any) error {
	<-s.ctx.Done()
	return s.ctx.Err()
}

func TestMissingRequestTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := receive(silent{ctx: t.Context()}, &securityv1alpha1.IstioCertificateRequest{})
		if status.Code(err) != codes.DeadlineExceeded || time.Since(start) != requestTimeout {
			t.Errorf("got error %v after %s, want DEADLINE_EXCEEDED after %s", err, time.Since(start), requestTimeout)
		}
	})
}

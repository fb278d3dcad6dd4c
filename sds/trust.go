// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// union returns all certificates of the lists, each once, in an order of its
// own, so that another order is no change.
func union(lists ...[]*x509.Certificate) []*x509.Certificate {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return slices.CompactFunc(all, (*x509.Certificate).Equal)
}

// SetAnchors makes PEM texts the roots that are trusted beside those of the
// authority or the root file; none takes them away again. A text that cannot be
// read is left out and named in the error; if none can be read, the anchors
// that are in force stay.
func (w *Workload) SetAnchors(texts [][]byte) error {
	var anchors []*x509.Certificate
	var problems []error
	for i, text := range texts {
		list, err := certs.ParseChain(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("trust anchor %d of %d is left out: %w", i+1, len(texts), err))
			continue
		}
		anchors = append(anchors, list...)
	}
	if len(problems) == 0 || len(anchors) > 0 {
		w.update(func(in *inputs) { in.anchors = anchors })
	}
	return errors.Join(problems...)
}

// followCRL keeps what the file with revoked certificates says in force. It may
// be missing at the start; once read, it is not given up again.
func (w *Workload) followCRL(files *Files, path string) {
	files.follow(&group{
		paths: []string{path}, optional: true,
		take: func(contents [][]byte) error {
			next, err := parseCRL(contents[0])
			if err != nil {
				return err
			}
			if !next.IsZero() && time.Now().After(next) {
				w.log.Warn("the list of revoked certificates should have been replaced already; Envoy refuses every certificate that it covers",
					"path", path, "expires", next.UTC().Format(time.RFC3339))
			}
			w.update(func(in *inputs) { in.crl = contents[0] })
			return nil
		},
	})
}

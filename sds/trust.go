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

// union returns the certificates of all lists, without duplicates, in a canonical order,
// so that a different order is not a change.
func union(lists ...[]*x509.Certificate) []*x509.Certificate {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return slices.CompactFunc(all, (*x509.Certificate).Equal)
}

// SetAnchors sets the additional roots, as PEM texts, besides those of the authority or
// the root file; none removes them. Invalid texts are ignored and named in the error; if
// all are invalid, the previous anchors stay in force.
func (w *Workload) SetAnchors(texts [][]byte) error {
	var anchors []*x509.Certificate
	var problems []error
	for i, text := range texts {
		list, err := certs.ParseChain(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("trust anchor %d of %d is ignored: %w", i+1, len(texts), err))
			continue
		}
		anchors = append(anchors, list...)
	}
	if len(problems) == 0 || len(anchors) > 0 {
		w.update(func(in *inputs) { in.anchors = anchors })
	}
	return errors.Join(problems...)
}

// followCRL follows the file with revoked certificates. The file may be missing at the
// start. Once read, its last content stays in force.
func (w *Workload) followCRL(files *Files, path string) {
	files.follow(&group{
		paths: []string{path}, optional: true,
		take: func(contents [][]byte) error {
			next, err := NextUpdate(contents[0])
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

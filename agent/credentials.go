// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

const (
	// maxCredentials is how many credentials have a line in an outage: those that end first.
	maxCredentials = 20
	maxName        = 300 // in bytes
	// credentialsAge is how long a list of credentials is used, credentialsTimeout how long Envoy
	// may take to return it.
	credentialsAge     = time.Second
	credentialsTimeout = 2 * time.Second
)

// The parts of credentials.
const (
	partCertificate = "certificate"
	partRoots       = "roots"
	partRevocations = "revocations"
)

// credential is a part of a secret that Envoy uses, besides the workload's own: such as the certificate
// of a gateway's server.
type credential struct {
	what, part string
	ends       []time.Time // ascending: of the part, or of each of the roots
	by         string      // who must renew it
	unknown    string      // why there are no ends; "" means that the text cannot be read
}

// until returns when peers are refused because of it: of several roots, the next end from now on, or
// the last one if all have ended. It is zero if the text cannot be read.
func (c credential) until(now time.Time) time.Time {
	for _, end := range c.ends {
		if end.After(now) {
			return end
		}
	}
	if len(c.ends) == 0 {
		return time.Time{}
	}
	return c.ends[len(c.ends)-1]
}

// lasting returns its line in an outage.
func (c credential) lasting(now time.Time) lasting {
	out := lasting{What: c.what, Until: c.until(now).UTC(), By: c.by}
	switch {
	case len(c.ends) == 0:
		out.Until, out.Missing, out.Unknown, out.Then = time.Time{}, true, true, cmp.Or(c.unknown, "its text cannot be read")
	case c.part == partCertificate:
		out.Then = "peers refuse it"
	case c.part == partRoots:
		out.Then = "peers below it are refused"
	default:
		out.Then = coveredRefused
	}
	return out
}

// coveredRefused is what happens when a revocation list should have been replaced.
const coveredRefused = "covered peers are refused"

// credentials are the secrets that Envoy uses. They are read from Envoy itself: it may have them from
// the control plane, from files, from the last good configuration or from an earlier agent.
type credentials struct {
	secrets   func(func(envoy.Secret)) error // calls a function with each secret that Envoy uses
	namespace string                         // of the workload
	external  bool                           // another server manages the workload's own secrets

	mu    sync.Mutex // guards the fields below, and orders the requests
	read  time.Time
	list  []credential
	err   error
	files envoyFiles
}

// newCredentials returns the credentials of the Envoy with an admin port, also once ctx is done. relay
// returns when its listeners and clusters changed last.
func newCredentials(ctx context.Context, admin *envoy.Admin, namespace string, external bool, relay func() xdsproxy.Status) *credentials {
	within := func(ask func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), credentialsTimeout)
		defer cancel()
		return ask(ctx)
	}
	return &credentials{
		namespace: namespace, external: external,
		secrets: func(fn func(envoy.Secret)) error {
			return within(func(ctx context.Context) error { return admin.Secrets(ctx, fn) })
		},
		files: envoyFiles{relay: relay, list: func(fn func(envoy.File)) error {
			return within(func(ctx context.Context) error { return admin.Files(ctx, fn) })
		}},
	}
}

// all returns the credentials, as they were a second ago at most.
func (c *credentials) all() ([]credential, error) {
	if c == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.read) >= credentialsAge {
		c.list = nil
		updated := map[string]time.Time{}
		c.err = c.secrets(func(s envoy.Secret) {
			c.list = append(c.list, c.of(s)...)
			updated[s.Name] = s.Updated
		})
		if c.err == nil {
			var own []credential
			own, c.err = c.files.credentials(now, updated)
			c.list = append(c.list, own...)
		}
		c.read = time.Now()
	}
	return c.list, c.err
}

// of returns the parts of a secret that may expire. The workload's own secrets have none, because they
// are among the agent's holdings, and neither have the roots of the system, of which some have usually
// expired.
func (c *credentials) of(s envoy.Secret) (list []credential) {
	if sds.OwnSecret(s.Name) && !c.external || s.Name == sds.NameSystem {
		return nil
	}
	name, by := ownerOf(s.Name, c.namespace)
	for part, text := range map[string][]byte{partCertificate: s.Chain, partRoots: s.Roots, partRevocations: s.CRL} {
		if ends, ok := partEnds(part, text); ok {
			list = append(list, credential{what: clip.Text(part+" "+name, maxName), part: part, ends: ends, by: clip.Text(by, maxName)})
		}
	}
	return list
}

// partEnds returns the ends of a part of a secret, none if its text cannot be read. It returns false for
// what cannot expire.
func partEnds(part string, text []byte) (ends []time.Time, ok bool) {
	if len(text) == 0 {
		return nil, false
	}
	switch part {
	case partCertificate:
		ends = endsOf(text)
		return ends[:min(len(ends), 1)], true
	case partRoots:
		return endsOf(text), true
	}
	next, err := sds.NextUpdate(text)
	if err != nil {
		return nil, true
	}
	return []time.Time{next}, !next.IsZero()
}

// endsOf returns the ends of the certificates in a PEM text in ascending order. Go may be unable to parse
// some that Envoy supports.
func endsOf(text []byte) (ends []time.Time) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			ends = append(ends, cert.NotAfter)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends
}

// ownerOf returns the name of a secret as shown, and who must renew it.
func ownerOf(secret, namespace string) (name, by string) {
	scheme, rest, _ := strings.Cut(secret, "://")
	switch scheme {
	case "kubernetes", "kubernetes-gateway", "configmap":
		full := rest
		if !strings.Contains(rest, "/") {
			full = namespace + "/" + rest
		}
		kind := "Secret"
		if scheme == "configmap" {
			kind = "ConfigMap"
			full = strings.TrimSuffix(full, "-cacert")
		}
		by = fmt.Sprintf("the owner of %s %s", kind, full)
		if base, roots := strings.CutSuffix(full, "-cacert"); roots {
			by += " or " + base
		}
		return rest, by
	}
	if files := sds.FilesOf(secret); len(files) > 0 {
		return files[0], "the program that writes " + strings.Join(files, " and ")
	}
	return secret, "the server of the secret " + secret
}

// lastingOf returns the lines of credentials in an outage: those that end first, and one for all others.
// Of several with the same line, the first to end is in it.
func lastingOf(list []credential, now time.Time) (out []lasting) {
	sorted := slices.SortedStableFunc(slices.Values(list), func(a, b credential) int {
		return cmp.Or(a.until(now).Compare(b.until(now)), cmp.Compare(a.what, b.what))
	})
	known := map[string]bool{}
	sorted = slices.DeleteFunc(sorted, func(c credential) bool {
		twice := known[c.what]
		known[c.what] = true
		return twice
	})
	for _, c := range sorted[:min(len(sorted), maxCredentials)] {
		out = append(out, c.lasting(now))
	}
	if more := sorted[len(out):]; len(more) > 0 {
		next := more[0].lasting(now)
		next.What, next.Then, next.By = "other credentials", fmt.Sprintf("the first of %d ends", len(more)), ""
		out = append(out, next)
	}
	return out
}

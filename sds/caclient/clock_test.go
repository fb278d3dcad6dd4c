// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"net/http"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// TestSkew uses authorities whose clocks are off by a known time, and which set the dates of
// certificates in different ways.
func TestSkew(t *testing.T) {
	t.Parallel()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	const ttl = 24 * time.Hour
	now := time.Now()
	leaf := func(from, to time.Duration) []string {
		tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(from), NotAfter: now.Add(to)}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return []string{string(certs.EncodeChain(cert)), "root"}
	}
	header := func(off time.Duration) string { return now.Add(off).UTC().Format(http.TimeFormat) }
	for name, tc := range map[string]struct {
		date    string
		chain   []string
		want    time.Duration // of the local clock
		unknown bool
	}{
		"same time, backdated by 2 minutes":  {chain: leaf(-2*time.Minute, ttl)},
		"authority ahead by an hour":         {chain: leaf(58*time.Minute, time.Hour+ttl), want: -time.Hour},
		"authority behind by a day":          {chain: leaf(-24*time.Hour-time.Minute, 0), want: 24 * time.Hour},
		"shorter lifetime than requested":    {chain: leaf(-time.Minute, time.Hour), unknown: true},
		"shorter lifetime, valid from later": {chain: leaf(10*time.Minute, time.Hour), want: -10 * time.Minute},
		"not backdated":                      {chain: leaf(0, ttl), unknown: true},
		"backdated by an hour":               {chain: leaf(-time.Hour, ttl), unknown: true},
		"difference in the header":           {date: header(-5 * time.Minute), chain: leaf(-time.Minute, time.Hour), want: 5 * time.Minute},
		"header takes precedence":            {date: header(0), chain: leaf(-24*time.Hour-time.Minute, 0)},
		"invalid header":                     {date: "yesterday", unknown: true},
		"not PEM":                            {chain: []string{"leaf", "root"}, unknown: true},
		"no response":                        {unknown: true},
	} {
		got, known := clock{start: now, end: now, date: tc.date, chain: tc.chain, ttl: int64(ttl.Seconds())}.skew()
		if known == tc.unknown || (got-tc.want).Abs() > time.Second {
			t.Errorf("%s: got %s, known: %v; want %s, unknown: %v", name, got, known, tc.want, tc.unknown)
		}
	}
}

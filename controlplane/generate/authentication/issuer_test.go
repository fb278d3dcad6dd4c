// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authentication

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/json"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// TestNobodysKey checks that nobody chose the key: its x is a hash, and it is a point of the curve.
func TestNobodysKey(t *testing.T) {
	t.Parallel()
	var key jose.JSONWebKey
	if err := json.Unmarshal([]byte(nobodysKey), &key); err != nil {
		t.Fatal(err)
	}
	public, ok := key.Key.(*ecdsa.PublicKey)
	if !ok || !key.Valid() {
		t.Fatalf("the key is %T", key.Key)
	}
	point, err := public.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if hash := sha256.Sum256([]byte("no private key 0")); string(point[1:33]) != string(hash[:]) {
		t.Errorf("x is %x", point[1:33])
	}
}

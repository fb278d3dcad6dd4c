// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestEtcdStoreTLS(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{TLS: true})
	dir := t.TempDir()
	stranger, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := stranger.user("stranger")
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) []byte {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	client := "&cert=" + e.Cert + "&key=" + e.Key
	good := "/mesh?ca=" + e.CA + client

	s := startEtcdStore(t, etcdURL(e, "", good))
	s.must(s.Create(t.Context(), etcdEntry("a", "10.0.0.1")))
	other := startEtcdStore(t, etcdURL(e, "", good+"&servername=localhost"))
	if other.Get(etcdEntry("a", "").Key) == nil {
		t.Error("another store does not see the object")
	}

	strangersCA := file("stranger.crt", stranger.pem)
	strangersCert, strangersKey := file("wrong.crt", wrong.cert), file("wrong.key", wrong.key)
	for _, c := range []struct {
		name, path string
		words      []string
	}{
		{"wrong CA", "/mesh?ca=" + strangersCA + client, []string{"signed by unknown authority", "ca="}},
		{"authorities of the system", "/mesh?tls=true" + client, []string{"signed by unknown authority", "ca="}},
		{"no client certificate", "/mesh?ca=" + e.CA, []string{"cert= and key="}},
		{"wrong client certificate", "/mesh?ca=" + e.CA + "&cert=" + strangersCert + "&key=" + strangersKey, []string{"cert= and key="}},
		{"wrong name", good + "&servername=other.example", []string{"certificate is valid for", "servername="}},
		{"no TLS", "/mesh", []string{"TLS", "ca="}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := openEtcdStore(t, etcdURL(e, "", c.path))
			s.run()
			s.told(c.words...)
			if _, err := s.Create(t.Context(), etcdEntry("b", "10.0.0.1")); err == nil || !strings.Contains(err.Error(), c.words[0]) {
				t.Errorf("a write: %v, want the words %q", err, c.words)
			}
		})
	}
	t.Run("the files are corrected", func(t *testing.T) {
		t.Parallel()
		ca, cert, key := file("ca.crt", stranger.pem), file("client.crt", wrong.cert), file("client.key", wrong.key)
		s := openEtcdStore(t, etcdURL(e, "", "/mesh?ca="+ca+"&cert="+cert+"&key="+key))
		s.run()
		s.told("ca=")
		file("ca.crt", read(e.CA))
		s.told("cert= and key=")
		file("client.key", read(e.Key))
		file("client.crt", read(e.Cert))
		s.until("the store has synced", s.HasSynced)
		if s.Get(etcdEntry("a", "").Key) == nil {
			t.Error("it does not see the object")
		}
	})
}

// TestEtcdStorePlainServer connects with TLS to an etcd without TLS.
func TestEtcdStorePlainServer(t *testing.T) {
	t.Parallel()
	e := NewEtcd(t, EtcdOptions{})
	s := openEtcdStore(t, etcdURL(e, "", "/mesh?tls=true"))
	s.run()
	s.told("plain text", "remove ca=")
}

func TestEtcdStoreUser(t *testing.T) {
	t.Parallel()
	const password, wrong = "correct horse", "battery staple"
	e := NewEtcd(t, EtcdOptions{Args: []string{"--bcrypt-cost=4", "--auth-token-ttl=5"}})
	ctx := testContext(t)
	root := etcdClient(t, e)
	for _, do := range []func() error{
		func() error { _, err := root.UserAdd(ctx, "root", "root"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := root.UserAdd(ctx, "mesh", password); return err },
		func() error { _, err := root.RoleAdd(ctx, "mesh"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "mesh", "/mesh/", clientv3.GetPrefixRangeEnd("/mesh/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserGrantRole(ctx, "mesh", "mesh"); return err },
		func() error { _, err := root.AuthEnable(ctx); return err },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	goodFile, changing := file("good", password+"\n"), file("changing", wrong)
	s := startEtcdStore(t, etcdURL(e, "mesh@", "/mesh?passwordFile="+goodFile))
	s.must(s.Create(ctx, etcdEntry("a", "10.0.0.1")))

	mended := openEtcdStore(t, etcdURL(e, "mesh@", "/mesh?passwordFile="+changing))
	mended.run()
	mended.told(`refuses the user "mesh"`, "the password in "+changing, "correct it")
	_, err := mended.Create(ctx, etcdEntry("b", "10.0.0.1"))
	if err == nil || !strings.Contains(err.Error(), changing) {
		t.Errorf("a write with a wrong password: %v", err)
	}
	file("changing", password)
	mended.until("the store has synced", mended.HasSynced)
	if mended.Get(etcdEntry("a", "").Key) == nil {
		t.Error("it does not see the object")
	}

	nobody := openEtcdStore(t, etcdURL(e, "", "/mesh"))
	nobody.run()
	nobody.told("requires authentication", "passwordFile=")
	elsewhere := openEtcdStore(t, etcdURL(e, "mesh@", "/other?passwordFile="+goodFile))
	elsewhere.run()
	elsewhere.told("may not use the keys below /other/", "etcdctl role grant-permission")

	// The session ends when etcd exits or the password changes.
	e.Kill()
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.until("a write succeeds after a restart of etcd", func() bool {
		_, err := s.Update(ctx, etcdEntry("a", "10.0.0.2"))
		return err == nil
	})
	version := mended.must(mended.Create(ctx, etcdEntry("c", "10.0.0.1")))
	s.until("the watch goes on after a restart of etcd", func() bool {
		c := s.Get(etcdEntry("c", "").Key)
		return c != nil && c.ResourceVersion == version
	})
	for _, store := range []*etcdStore{s, mended, nobody, elsewhere} {
		store.mu.Lock()
		said := store.log.String() + store.Name()
		for _, err := range store.errs {
			said += err.Error()
		}
		store.mu.Unlock()
		if strings.Contains(said, password) || strings.Contains(said, wrong) {
			t.Errorf("a password is revealed: %s", said)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package handover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// roleVariable makes the test program the next one, which takes the sockets with the addresses in its
// arguments.
const roleVariable = "OUTRIGGER_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "next" {
		if err := next(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// next takes sockets and reads what has arrived in them.
func next(tcp, udp, path, left string) error {
	s := Inherited()
	l, err := s.Listen(tcp)
	if err != nil {
		return err
	}
	local := s.Unix(path)
	if local == nil || s.Unix(path) != nil {
		return errors.New("the Unix socket cannot be taken once")
	}
	for _, l := range []net.Listener{l, local} {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if text, err := io.ReadAll(conn); err != nil || string(text) != "hello" {
			return fmt.Errorf("%s: %q, %w", l.Addr(), text, err)
		}
		if err := errors.Join(conn.Close(), l.Close()); err != nil {
			return err
		}
	}
	if _, err := os.Stat(path); err == nil {
		return errors.New("the file of the Unix socket is left")
	}
	c, err := s.ListenPacket(udp)
	if err != nil {
		return err
	}
	text := make([]byte, 5)
	if _, _, err := c.ReadFrom(text); err != nil || string(text) != "hello" {
		return fmt.Errorf("UDP: %q, %w", text, err)
	}
	s.Close() // of the one that is left
	again, err := net.Listen("tcp", left)
	if err != nil {
		return err
	}
	return errors.Join(c.Close(), again.Close())
}

// TestSockets passes sockets on to another program. What arrives in between waits in them.
func TestSockets(t *testing.T) { //nolint:paralleltest // other programs would inherit the sockets
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	udp, udpErr := net.ListenPacket("udp", "127.0.0.1:0")
	path := filepath.Join(t.TempDir(), "socket")
	local, localErr := net.Listen("unix", path)
	left, leftErr := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err, udpErr, localErr, leftErr); err != nil {
		t.Fatal(err)
	}
	kept, err := Keep(tcp, udp, local, left)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tcp.Close(), udp.Close(), local.Close(), left.Close()); err != nil {
		t.Fatal(err)
	}
	for _, address := range []net.Addr{tcp.Addr(), udp.LocalAddr(), local.Addr()} {
		conn, err := net.Dial(address.Network(), address.String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "hello")
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := kept.Pass(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], tcp.Addr().String(), udp.LocalAddr().String(), path, left.Addr().String())
	cmd.Env = append(os.Environ(), roleVariable+"=next")
	cmd.Stdout = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kept.Close() // as exec would
	if err := cmd.Wait(); err != nil {
		t.Errorf("the next program: %v", err)
	}
}

// TestKeepOther checks that only sockets can be kept, and that without inherited ones new ones are
// opened.
func TestKeepOther(t *testing.T) {
	t.Parallel()
	if _, err := Keep("a text"); err == nil {
		t.Error("a text is kept")
	}
	var none *Sockets
	l, err := none.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := none.ListenPacket(l.Addr().String())
	if err := errors.Join(err, l.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if none.Unix("socket") != nil {
		t.Error("there is a Unix socket")
	}
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// inherited returns w, so that Envoy inherits it if it is a file. If Envoy could not open the file as
// /dev/stdout, as access logs do, it returns a writer that os/exec puts a pipe before: systemd passes
// services a socket, and files that only root can open.
func inherited(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok {
		return w
	}
	again, err := os.OpenFile(fmt.Sprintf("/dev/fd/%d", f.Fd()), os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err != nil {
		return struct{ io.Writer }{f}
	}
	_ = again.Close() // nothing was written
	return w
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/yodel-rpc/yodel"
)

// twoAtOnce begins an upload while another one of the same name is open.
func (b *bed) twoAtOnce(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		once := false
		ended <- b.put(ctx, "middle", func(at, size int64) {
			if !once && at >= size/2 {
				once = true
				close(begun)
				<-goOn
			}
		})
	}()
	select {
	case <-begun:
	case err := <-ended:
		return "", fmt.Errorf("the first one ended: %w", err)
	}
	second := b.put(ctx, "middle", noReport)
	close(goOn)
	if err := <-ended; err != nil {
		return "", fmt.Errorf("the first one failed: %w", err)
	}
	return refused(second, yodel.FailedPrecondition)
}

// names asks for files outside of the folder, by their names and by a link, and for a folder.
func (b *bed) names(ctx context.Context) (string, error) {
	if err := os.Mkdir(filepath.Join(b.there, "folder"), 0o700); err != nil {
		return "", err
	}
	secret := filepath.Join(b.here, "one")
	names := []string{"../here/one", "folder/../../here/one", secret, "folder", "", ".", "one" + partSuffix}
	if runtime.GOOS != "windows" { // where links need a privilege
		if err := os.Symlink(secret, filepath.Join(b.there, "link")); err != nil {
			return "", err
		}
		names = append(names, "link")
	}
	for _, name := range names {
		err := get(ctx, b.client, name, filepath.Join(b.back, "secret"), noReport)
		if err == nil {
			return "", fmt.Errorf("%q was fetched", name)
		}
		t := &Transfer{Name: name}
		call, err := t.call()
		if err != nil {
			return "", err
		}
		_, err = Put.Do(ctx, b.client, call, func(send yodel.Send[[]byte]) error { return send(new([]byte)) })
		if err == nil || errors.Is(err, yodel.DataLoss) {
			return "", fmt.Errorf("%q was taken: %w", name, err)
		}
	}
	return fmt.Sprintf("%d refused", len(names)), nil
}

// tooLarge offers a file that is larger than the server allows.
func (b *bed) tooLarge(ctx context.Context) (string, error) {
	f, err := os.Create(filepath.Join(b.here, "large"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := f.Truncate(maxBytes + 1); err != nil {
		return "", err
	}
	return refused(b.put(ctx, "large", noReport), yodel.ResourceExhausted)
}

// refused wants a call to have failed with a code.
func refused(err error, code yodel.Code) (string, error) {
	if yodel.CodeOf(err) != code {
		return "", fmt.Errorf("it ended with %w, not with %w", err, code)
	}
	return err.Error(), nil
}

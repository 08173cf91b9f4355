//go:build !linux

package cache

func adviseHuge([]byte) {}

// SPDX-License-Identifier: Apache-2.0
package yodel.bench.motan;

import io.netty.bootstrap.ChannelInitializerExtension;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelOutboundHandlerAdapter;
import io.netty.channel.ChannelPromise;
import io.netty.channel.ServerChannel;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;

/** Has servers listen on the loopback interface: Motan's listen on every one, whatever host is asked for. */
public final class OnLoopback extends ChannelInitializerExtension {
  @Override
  public void postInitializeServerListenerChannel(ServerChannel channel) {
    channel.pipeline().addLast(new ChannelOutboundHandlerAdapter() {
      @Override
      public void bind(ChannelHandlerContext ctx, SocketAddress local, ChannelPromise promise) {
        ctx.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), ((InetSocketAddress) local).getPort()), promise);
      }
    });
  }
}
